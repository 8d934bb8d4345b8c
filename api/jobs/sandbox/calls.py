"""System calls that no child needs, by name, and their numbers on the machines that are known.

The list names what reaches beyond the process: the network, other processes, namespaces and mounts, keys, the kernel's
own interfaces, and attributes of files, which Landlock leaves to every process of the same user.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CLONE",
    "CLONE3",
    "FORBIDDEN",
    "IOCTL",
    "KILL",
    "MACHINES",
    "NEWEST",
    "PRLIMIT",
    "SCHED_SETAFFINITY",
    "UTIMENSAT",
]

# Machine → AUDIT_ARCH of linux/audit.h.
MACHINES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CLONE: Final = {"x86_64": 56, "aarch64": 220}
CLONE3: Final = 435
IOCTL: Final = {"x86_64": 16, "aarch64": 29}
KILL: Final = {"x86_64": 62, "aarch64": 129}
PRLIMIT: Final = {"x86_64": 302, "aarch64": 261}
SCHED_SETAFFINITY: Final = {"x86_64": 203, "aarch64": 122}
UTIMENSAT: Final = {"x86_64": 280, "aarch64": 88}
NEWEST: Final = 469  # on all machines: of later calls nobody knows here what they reach

# Name → number on x86_64 and on aarch64, None where the machine has no such call.
_NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    # network
    "socket": (41, 198),
    "socketpair": (53, 199),  # what is sent by either end may be addressed to any local socket
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setsid": (112, 157),  # out of the group that is ended with the child
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),  # whose numbers are small and need no name
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # files beside their names
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the kernel's own interfaces
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "personality": (135, 92),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
}

FORBIDDEN: Final = {
    machine: tuple(sorted(n for numbers in _NUMBERS.values() if (n := numbers[k]) is not None))
    for k, machine in enumerate(("x86_64", "aarch64"))
}
