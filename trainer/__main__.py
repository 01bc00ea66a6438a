"""`python -m trainer` is `meshwright`."""

from trainer.cli import main

main()
