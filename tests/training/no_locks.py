"""Makes every file lock fail, in Python and in C++ libraries, as on Lustre without -o flock."""

import ctypes
import errno
import fcntl
import platform
import struct

SYSTEM_CALLS = {'x86_64': (73, 72), 'aarch64': (32, 25)}  # the numbers of flock and fcntl
LOCKING = (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW)
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # opcodes of the kernel's system call filters (BPF)
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NUMBER, SECOND_ARGUMENT = 0, 24  # offsets in the data that a filter reads
SET_FILTER, NO_NEW_PRIVILEGES, FILTER_MODE = 22, 38, 2


class _Program(ctypes.Structure):
  _fields_ = (('length', ctypes.c_ushort), ('instructions', ctypes.c_char_p))


def forbid_locks() -> None:
  """From now on every lock call of this process and its children fails with ENOSYS."""
  flock, control = SYSTEM_CALLS[platform.machine()]
  refuse = len(LOCKING) + 5  # the last instruction
  program = [(LOAD, 0, 0, NUMBER), (EQUAL, refuse - 2, 0, flock), (EQUAL, 0, len(LOCKING) + 1, control)]
  program += [(LOAD, 0, 0, SECOND_ARGUMENT)]
  program += [(EQUAL, len(LOCKING) - k, 0, command) for k, command in enumerate(LOCKING)]
  program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERROR | errno.ENOSYS)]
  code = b''.join(struct.pack('HBBI', *instruction) for instruction in program)
  libc = ctypes.CDLL(None, use_errno=True)
  zeros = [ctypes.c_ulong(0)] * 2
  for arguments in (
    (NO_NEW_PRIVILEGES, ctypes.c_ulong(1), ctypes.c_ulong(0), *zeros),
    (SET_FILTER, ctypes.c_ulong(FILTER_MODE), ctypes.byref(_Program(len(program), code)), *zeros),
  ):
    if libc.prctl(*arguments):
      raise OSError(ctypes.get_errno(), 'the system call filter was refused')
