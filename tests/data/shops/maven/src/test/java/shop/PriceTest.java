package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class PriceTest {
    @Test
    void plain() {
        assertEquals(3, Price.total(new int[] {1, 2}, 0));
    }

    @Test
    void discount() {
        assertEquals(27, Price.total(new int[] {10, 20}, 10));
    }
}
