"""A file on FUSE that remembers every write and every flush, in their order, with the time of each: below a loop device it is
a disk of which one can say afterwards what it held at any instant, and what it might have held had it lost its power then.

    recording_disk.py FOLDER IMAGE LOG

mounts a file system with one file, `disk`, on FOLDER; the file begins as IMAGE is, and IMAGE is left as it is. LOG gets a
record for each write and each flush: seconds (of time.monotonic), offset and length as struct "<dqq", a write's bytes behind
it; a flush has the length -1. Needs Debian's python3-fusepy, and root for the loop device.
"""

import errno
import os
import stat
import struct
import sys
import threading
import time

RECORD = struct.Struct("<dqq")


class Recorded:
    """A log that was written: the records, and images of the disk after some of them."""

    def __init__(self, image, log):
        self.start = image.read_bytes()
        self.bytes = log.read_bytes()
        self.records = []  # time, offset, length, place of the bytes
        at = 0
        while at + RECORD.size <= len(self.bytes):
            when, offset, length = RECORD.unpack_from(self.bytes, at)
            at += RECORD.size
            if at + max(0, length) > len(self.bytes):
                break
            self.records.append((when, offset, length, at))
            at += max(0, length)
        self.disk, self.flushed = bytearray(self.start), 0

    def apply(self, disk, number):
        _, offset, length, place = self.records[number]
        if length > 0:
            disk[offset:offset + length] = self.bytes[place:place + length]

    def image(self, end, keeps):
        """The disk with the records before `end`, those behind the last flush only where keeps(). `end` never falls from call
        to call. Returns it with the number of writes that were left out."""
        flush = max((n for n in range(self.flushed, end) if self.records[n][2] < 0), default=self.flushed)
        for number in range(self.flushed, flush):
            self.apply(self.disk, number)
        self.flushed = max(self.flushed, flush)
        disk, left_out = bytearray(self.disk), 0
        for number in range(self.flushed, end):
            if keeps():
                self.apply(disk, number)
            else:
                left_out += self.records[number][2] >= 0
        return disk, left_out


def fuse_module():
    """fusepy: so named in Debian, `fuse` as PyPI has it. ImportError or OSError where it or libfuse is missing."""
    try:
        import fusepy
        return fusepy
    except ImportError:
        import fuse
        return fuse


def serve(folder, image, log):
    fuse = fuse_module()

    class Disk(fuse.Operations):
        def __init__(self):
            with open(image, "rb") as file:
                self.disk = bytearray(file.read())
            self.log = open(log, "wb")
            self.guard = threading.Lock()

        def getattr(self, path, handle=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path == "/disk":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(self.disk)}
            raise fuse.FuseOSError(errno.ENOENT)

        def readdir(self, path, handle):
            return [".", "..", "disk"]

        def read(self, path, size, offset, handle):
            return bytes(self.disk[offset:offset + size])

        def write(self, path, data, offset, handle):
            with self.guard:
                self.disk[offset:offset + len(data)] = data
                self.log.write(RECORD.pack(time.monotonic(), offset, len(data)) + data)
            return len(data)

        def fsync(self, path, datasync, handle):
            with self.guard:
                self.log.write(RECORD.pack(time.monotonic(), 0, -1))
            return 0

        def destroy(self, path):
            self.log.close()

    fuse.FUSE(Disk(), folder, foreground=True, big_writes=True, max_write=1 << 17)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    os.setsid()
    serve(*sys.argv[1:])
