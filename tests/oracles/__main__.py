import argparse
import sys

from tests.oracles.runner import CorruptManifest, run

parser = argparse.ArgumentParser(prog="python -m tests.oracles", description="Run the library on a folder of reference arrays.")
parser.add_argument("folder", help="a folder with a manifest.json")
parser.add_argument("-v", "--verbose", action="store_true", help="name the arrays that were compared and those that were read")
arguments = parser.parse_args()
try:
    sys.exit(run(arguments.folder, verbose=arguments.verbose))
except CorruptManifest as error:
    print(f"cannot run: {error}", file=sys.stderr)
    sys.exit(2)
