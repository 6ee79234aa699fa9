"""`python -m elasticjob` is the `elasticjob` command; `torchrun -m elasticjob doctor` runs it on every rank."""

from elasticjob.diagnose.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
