"""Run one measurement: python -m benchmarks decode --questions FILE --arms vanilla,hierchat --json OUT."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.arguments import add_benchmarks
from hierchat import logs
from hierchat.config import require_folders


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement and return its exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measures hierchat on this machine.")
    parser.add_argument("--verbose", action="store_true", help="say more in the terminal")
    add_benchmarks(parser)
    args = parser.parse_args(arguments)
    logs.set_up(args.verbose)
    try:
        require_folders()
        if getattr(args, "model", None) and args.kind != "vllm":
            from hierchat.models.catalogue import read_catalogue
            from hierchat.models.load.add import chosen

            args.model = chosen(args.model, read_catalogue())
        from benchmarks.commands import run

        return run(args)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"benchmarks: {logs.error_message(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
