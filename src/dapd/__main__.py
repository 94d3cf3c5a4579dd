"""`python -m dapd` is the `dapd` command."""

from dapd.cli import main

if __name__ == "__main__":
    main()
