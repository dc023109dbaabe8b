import { expect, test } from "vitest";
import { total } from "../src/price.js";
test("plain", () => expect(total([1, 2])).toBe(3));
test("discount", () => expect(total([10, 20], 10)).toBe(27));
