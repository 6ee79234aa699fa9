"""`python -m elasticjob_operator.cli`: the same as the console script."""

from elasticjob_operator.cli import main

main()
