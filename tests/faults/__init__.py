"""The proof that nothing is lost and nothing runs twice: campaigns of kills, crash points, faults and damage."""
