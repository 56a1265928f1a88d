"""The program of a Databricks job: the router's command line, with the job's parameters."""

from router.cli import main

main()
