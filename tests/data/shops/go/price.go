package shop

func Total(items []int, discount int) int {
	sum := 0
	for _, item := range items {
		sum += item
	}
	return sum
}
