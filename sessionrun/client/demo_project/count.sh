seq 3
