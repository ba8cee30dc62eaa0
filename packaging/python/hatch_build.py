"""Gives the wheel the tag of the platform whose program it contains."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Platform(BuildHookInterface):
    """Reads the platform from the environment variable FENCEPOST_PLATFORM."""

    def initialize(self, version, build_data):
        """Sets the tag: any Python 3, no ABI."""
        build_data["tag"] = "py3-none-" + os.environ["FENCEPOST_PLATFORM"]
        build_data["pure_python"] = False
