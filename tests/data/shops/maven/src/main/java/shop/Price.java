package shop;

public class Price {
    public static int total(int[] items, int discount) {
        int sum = 0;
        for (int item : items) sum += item;
        return sum;
    }
}
