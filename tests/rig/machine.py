"""The real systemd as process 1 of namespaces of its own, on an overlay of this host: for the shipped units, end to end.

It shares the network, so that servers of the rig can be reached, and nothing else. Needs root.
"""

import os
import signal
import subprocess
from pathlib import Path

from . import process

UNSHARE = ["unshare", "--fork", "--pid", "--mount", "--cgroup", "--uts", "--ipc", "--propagation", "unchanged", "--kill-child"]

BOOT = r"""
set -eu
root=$1
# Nothing that is mounted here is to be seen outside. Said at the root of the namespace, for in a chroot / is no mount.
nsenter --mount=/proc/self/ns/mnt mount --make-rprivate /
mount -t tmpfs -o size=512m tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/new"
mount -t overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" overlay "$root/new"
new=$root/new
mount -t proc proc "$new/proc"
mount -t sysfs -o ro sysfs "$new/sys"
mount -t cgroup2 cgroup2 "$new/sys/fs/cgroup"
mount -t tmpfs tmpfs "$new/run"
mount -t tmpfs tmpfs "$new/tmp"
mount -t tmpfs tmpfs "$new/var/tmp"
mount -t tmpfs -o mode=755 tmpfs "$new/dev"
for node in null,1,3 zero,1,5 full,1,7 random,1,8 urandom,1,9 tty,5,0; do
    IFS=, read -r name major minor <<<"$node"
    mknod -m 666 "$new/dev/$name" c "$major" "$minor"
done
mkdir "$new/dev/shm" "$new/dev/pts"
ln -s pts/ptmx "$new/dev/ptmx"
rm -rf "$new/etc/systemd/system" "$new/var/log/journal" "$new/etc/outboxd"
mkdir -p "$new/etc/systemd/system" "$new/etc/outboxd" "$new/run/systemd/system"
printf 'outboxd-test\n' >"$new/etc/hostname"
rm -f "$new/etc/machine-id"
printf '%s\n' 0123456789abcdef0123456789abcdef >"$new/etc/machine-id"
cat >"$new/etc/systemd/system/test.target" <<UNIT
[Unit]
Wants=systemd-journald.service
After=systemd-journald.service
AllowIsolate=yes
UNIT
cat >"$new/run/start" <<INSIDE
mount --make-rshared /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=outboxd-test /lib/systemd/systemd --system --unit=test.target \
    --log-target=journal --show-status=no --log-level=info </dev/null
INSIDE
# Over the root of the namespace, as an initramfs does it: for the kernel we would else be in a chroot, where units get no users.
exec nsenter --mount=/proc/self/ns/mnt --wd="$new" sh -c 'mount --move . / && exec chroot . sh /run/start'
"""


class Machine:
    def __init__(self, root):
        self.folder = Path(root) / "machine"
        self.folder.mkdir()
        self.log = Path(root) / "machine.log"
        self.server = None

    @staticmethod
    def missing():
        """Why it cannot be booted here; None: it can."""
        if os.geteuid() != 0:
            return "needs root"
        if not Path("/lib/systemd/systemd").exists():
            return "systemd is not installed"
        probe = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
        return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else None

    def boot(self):
        self.server = process.Server([*UNSHARE, "bash", "-c", BOOT, "boot", self.folder], self.log)
        process.wait_until(self._booted, lambda: f"systemd is up; its log:\n{self.server.tail(60)}", 60)
        return self

    def _booted(self):
        assert self.server.alive, f"systemd ended:\n{self.server.tail(60)}"
        return self.pid() and self.run("systemctl", "is-active", "test.target").stdout.strip() == "active"

    def pid(self):
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def run(self, *argv, check=False, **options):
        """A command inside."""
        done = subprocess.run(["nsenter", "-t", str(self.pid()), "-m", "-p", "-u", "-i", "-C", "-r", "-w", "--", *map(str, argv)],
                              stdin=options.pop("stdin", subprocess.DEVNULL), capture_output=True, text=True, timeout=120, **options)
        assert not check or done.returncode == 0, f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def systemctl(self, *argv, check=True):
        return self.run("systemctl", *argv, check=check).stdout.strip()

    def show(self, unit, name):
        return self.systemctl("show", "-P", name, unit)

    def journal(self, unit):
        return self.run("journalctl", "--no-pager", "-o", "short-precise", "-u", unit).stdout

    def write(self, path, text, mode=0o644):
        # Through the root of process 1: the overlay is not visible from here.
        target = Path(f"/proc/{self.pid()}/root") / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def install(self, source, path, mode=0o755):
        target = Path(f"/proc/{self.pid()}/root") / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(source).read_bytes())
        target.chmod(mode)

    def shutdown(self):
        if self.server and self.server.alive:
            self.server.signal(signal.SIGKILL)  # --kill-child takes process 1 along, and that one everybody
            self.server.wait()
