"""Exceptions, by remedy. Every message names the cause and the remedy."""

from collections.abc import Sequence


class KvrailError(Exception):
    """The root of all of them."""

    status: str | None
    """The status of the request, as in the table of statuses, if one has failed."""

    failed: list[tuple[int, str]]
    """Of a batch: the number and the status of each request that failed."""

    def __init__(
        self,
        message: str = "",
        status: str | None = None,
        failed: Sequence[tuple[int, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.failed = list(failed)


class NoSidecarError(KvrailError, ConnectionError):
    """Nothing answers at the socket: start a sidecar, or name its socket."""


class NotAdmittedError(KvrailError, PermissionError):
    """The sidecar refuses this client."""


class AccessError(KvrailError, PermissionError):
    """The sidecar's configuration refuses this user that right on the namespace."""


class VersionMismatchError(NotAdmittedError):
    """Package and sidecar do not understand each other: update the older one."""


class SessionEndedError(KvrailError, ConnectionError):
    """The sidecar has stopped or ended the session: attach again."""


class ServeError(KvrailError):
    """An embedded sidecar did not start or did not stop well; the message has its output."""


class ClosedError(KvrailError, ValueError):
    """The client, arena or queue was closed before."""


class ForkedError(KvrailError):
    """The object was made before a fork: attach in the child."""


class RequestError(KvrailError, ValueError):
    """An invalid request: out of range, misaligned, of a wrong type. Nothing was done."""


class UnknownVolumeError(KvrailError, LookupError):
    """The sidecar has no such volume."""


class NoStoreError(UnknownVolumeError):
    """The volume is no store: its requests name offsets, not keys."""


class NamespaceError(RequestError):
    """A namespace that cannot be opened so: another identity than the store has for it (the message
    names the field that differs), an empty identity, or no name."""


class TooSmallError(RequestError):
    """The buffer of a get is smaller than the block. Nothing was moved."""

    needed: int
    """Bytes of the block."""

    def __init__(
        self,
        message: str = "",
        status: str | None = None,
        failed: Sequence[tuple[int, str]] = (),
        needed: int = 0,
    ) -> None:
        super().__init__(message, status, failed)
        self.needed = needed


class UnknownGpuError(KvrailError, LookupError):
    """The sidecar does not serve this GPU."""


class TensorError(KvrailError, TypeError):
    """Something that is no memory of a GPU to be shared: on the host, freed, of several GPUs."""


class LayoutError(KvrailError, ValueError):
    """Shapes, strides or fragments that are no paged cache; the message names which and why."""


class QueueFullError(KvrailError):
    """The queue is full: poll it, then try again."""


class QueueBusyError(KvrailError):
    """Another thread uses the queue: open one for each thread."""


class QuotaError(KvrailError):
    """A limit of the sidecar; the message names its key in the configuration."""


class MemoryUnusableError(KvrailError):
    """Memory that cannot be mapped, or is not what an arena must be."""


class TimedOutError(KvrailError, TimeoutError):
    """The time is over; the request may still be executed."""


class MissError(KvrailError, LookupError):
    """The block is not there."""


class CorruptError(KvrailError):
    """The bytes are not those that were expected: treat the block as absent."""


class DeviceError(KvrailError, OSError):
    """The device failed, hangs or is gone."""


class NoSpaceError(DeviceError):
    """The device is full."""


class GpuError(KvrailError):
    """The GPU failed; its memory must be considered lost."""


class UnsupportedError(KvrailError):
    """This device cannot do that."""


class InternalError(KvrailError):
    """A bug in kvrail."""
