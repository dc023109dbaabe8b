package other

func One() int { return 1 }
