"""What other programs wrote, byte for byte."""

from pathlib import Path

FOLDER = Path(__file__).parent
