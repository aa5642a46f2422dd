"""hierchat from a clone, without installing it: the same as `hierchat serve`."""

import sys

from hierchat.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
