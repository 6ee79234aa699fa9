"""Slurm batch scripts: the `#SBATCH` options (`options`) and the command that starts the training (`script`).

Scripts are read, not run. What a shell would have to compute is left out with a warning.
"""
