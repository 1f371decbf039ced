import argparse
import sys

from tests.cases.runner import CorruptFile, run

parser = argparse.ArgumentParser(prog="python -m tests.cases", description="Run the library on a file of reported faults.")
parser.add_argument("file", help="a JSON list of cases")
parser.add_argument("-v", "--verbose", action="store_true", help="name the expectations that were checked")
arguments = parser.parse_args()
try:
    sys.exit(run(arguments.file, verbose=arguments.verbose))
except CorruptFile as error:
    print(f"cannot run: {error}", file=sys.stderr)
    sys.exit(2)
