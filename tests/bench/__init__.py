"""Benchmarks: ratios against a floor measured in the same rounds, each with its goal."""
