"""What a torchrun in the tests starts: the launcher with a hand-written plan."""

import sys
from argparse import Namespace
from dataclasses import replace

from autoplan.launch import Launch, main
from tests.runtime.bigram import SETTINGS, TRIAL, bigram


def prepare(arguments: Namespace) -> Launch:
    settings = replace(SETTINGS, steps=arguments.steps, record=arguments.verify)
    return Launch(bigram(), TRIAL, settings, arguments.device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prepare))
