"""Slurm: the executor of sessions whose jobs a Slurm cluster runs, and what runs around each job on a node.

In: sbatch, squeue and scancel; what jobs and head leave each other on the shared file system.
Not in: which job runs when, and where: the one is the engine's, the other Slurm's.
"""
