"""The frozen suite: what its contenders scored, how they rank, and whether the targets are met."""
