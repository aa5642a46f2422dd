"""Run the command line by `python -m hierchat ...`."""

import sys

from hierchat.cli.main import main

sys.exit(main())
