"""How much there is, and what can be named: the yardsticks of the whole."""
