package shop

import "testing"

func TestPlain(t *testing.T) {
	if Total([]int{1, 2}, 0) != 3 {
		t.Fatal("plain")
	}
}

func TestDiscount(t *testing.T) {
	if Total([]int{10, 20}, 10) != 27 {
		t.Fatal("discount")
	}
}
