"""python -m hierchat ..."""

import sys

from hierchat.cli import main

sys.exit(main())
