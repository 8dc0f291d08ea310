"""`anbar` on a machine with room for any engine. Run as a script: the stand-ins for engines need no memory
and no instructions, so a test that starts them must not depend on what the machine has free meanwhile."""

from collections.abc import Mapping
from dataclasses import replace

from anbar.apps.doctor import run as doctor
from anbar.apps.machine import Machine, read_machine
from anbar.cli.main import main

ROOM_BYTES = 1 << 40


def roomy(environ: Mapping[str, str]) -> Machine:
    found = read_machine(environ)
    return replace(
        found,
        flags=found.flags | {"avx2"},
        total_memory=ROOM_BYTES,
        free_memory=ROOM_BYTES,
        shm_total=ROOM_BYTES,
        shm_free=ROOM_BYTES,
    )


if __name__ == "__main__":
    doctor.read_machine = roomy  # type: ignore[attr-defined]  # not exported from there
    main()
