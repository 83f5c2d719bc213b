"""A small file system that fills up. It lives in a mount namespace of this process and its children, and dies with them."""

import ctypes
import functools
import os
import subprocess

CLONE_NEWNS = 0x00020000


@functools.cache
def own_namespace():
    """Leaves the machine's mounts alone from here on; False without the right to do so."""
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0


def small(folder, size):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", folder], check=True)
    return folder


def unmount(folder):
    subprocess.run(["umount", "-l", folder], check=True)
