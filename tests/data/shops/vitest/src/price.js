export const total = (items, discount = 0) => items.reduce((a, b) => a + b, 0);
