"""The part that all adapters of engines share: a namespace of a store that comes back after its
sidecar was restarted, and the engine's memory. `_lane` moves groups of blocks over it.

An adapter has one :class:`Link`.
No call here raises because a sidecar is gone or a drive hangs: lookups find nothing, and groups end
without blocks. Nothing here keeps an index, and the only thread is the one that attaches again.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import kvrail
from kvrail import _forks, _identity
from kvrail._lane import Lane, Session, Transfers
from kvrail._log import Warnings
from kvrail._mapping import Memory
from kvrail._types import ChainWord

ATTACH_S = 10.0
"""Longest wait for each of the sidecar's answers while a link is made, or made again."""

CLOSE_S = 2.0
"""Longest wait for a thread that attaches, when a link is closed."""

RETRY_S = 1.0
"""Time between two tries to attach to a sidecar that is gone."""

LOOKUP_S = 0.1
"""Longest wait for a lookup; blocks without an answer are misses, and until the sidecar answers
again none is looked up. On an idle machine a lookup of 1,000 keys takes 0.2 ms."""

CHANGE_S = 0.5
"""Longest wait for a call that ends holds or drops blocks: an engine makes it for many at once."""

PULSE_S = 3600.0
"""Time after which a sidecar that does not answer gets another request."""

HUNG_S = 10.0
"""A group that takes longer means a drive that hangs: until it ends, lookups find nothing and
nothing new is begun."""

PULSE_EACH_S = 0.02
"""Time between two questions whether the sidecar answers, while something takes long."""

FEED_S, NEWS_S = 0.1, 0.1
"""Time between two polls of the feed, and the longest wait for an answer."""

log = logging.getLogger("kvrail")

ENDED = (
    kvrail.SessionEndedError | kvrail.NoSidecarError | kvrail.ClosedError | kvrail.ForkedError
)
"""Errors behind which there is no session."""

T = TypeVar("T")


class Link:
    """A namespace of a store, while an engine runs. For any thread."""

    def __init__(
        self,
        engine: str,
        *,
        socket: str,
        store: str,
        identity: Mapping[str, Any],
        namespace: str | None = None,
    ) -> None:
        """Attaches. Errors of the configuration are raised here, and only here.

        :param engine: its name, in the sidecar's status and in logs.
        :param identity: everything that makes the bytes of blocks incompatible.
        :param namespace: engines with the same name share blocks; by default all of the identity.
            Another identity finds nothing, whatever the name.
        """
        self._engine, self._socket, self._store = engine, socket, store
        document = _identity.document(identity)
        self._named = (_identity.name(engine, namespace, document), document)
        self._ages: list[Callable[[], float]] = []
        self._warnings = Warnings()
        self._lock = _forks.lock()
        self._retry_at = self._look_at = 0.0
        self._asked = self._closed = False
        self._pulse_at: float | None = None
        self._pulse_next = 0.0
        self._attaching: threading.Thread | None = None
        self._attaching_in = os.getpid()
        self._addresses: Sequence[int] = ()
        self._session: Session | None = self._attach()

    def watch(self, age: Callable[[], float]) -> None:
        """Counts the group whose age in seconds this returns for :attr:`hangs`."""
        self._ages.append(age)

    @property
    def session(self) -> Session | None:
        """The session; None while there is no sidecar. A thread attaches again, so that no request
        of the engine waits for that."""
        with self._lock:
            is_due = self._session is None and time.monotonic() >= self._retry_at
            if not is_due or self._attaches or self._closed:
                return self._session
            name = f"kvrail for {self._engine}"
            self._attaching = thread = threading.Thread(
                target=self._attach_again, name=name, daemon=True
            )
            self._attaching_in = os.getpid()
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._settle(None, error)
        return None

    @property
    def _attaches(self) -> bool:
        """Whether a thread attaches. One that was begun before a fork is not in the child."""
        thread = self._attaching
        if thread is None or self._attaching_in != os.getpid():
            return False
        return thread.ident is None or thread.is_alive()

    @property
    def hangs(self) -> bool:
        """Whether a drive holds groups for longer than drives do."""
        return any(age() > HUNG_S for age in self._ages)

    def lane(self, depth: int = 128) -> Lane[Any]:
        """A lane of its own for a thread of the engine.

        :param depth: groups that may be in flight at once.
        """
        return Lane(self, depth)

    def lookup(self, keys: Sequence[bytes], *, hold: float = 0.0) -> Sequence[bool]:
        """Which blocks are there; those are not evicted for `hold` seconds."""
        nothing = [False] * len(keys)
        if self.hangs or not keys or not self._answers():
            return nothing
        return self.call(lambda space: space.lookup(keys, hold=hold, timeout=LOOKUP_S), nothing)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Makes the store count blocks as used."""
        if keys and not self.hangs and self._answers():
            self.call(lambda space: space.lookup(keys, touch=True, timeout=LOOKUP_S), None)

    def chain(self, keys: Sequence[bytes]) -> ChainWord:
        """The part of a chain of blocks that the store has, without a request."""
        if self.hangs or not keys:
            return "extends"
        return self.call(lambda space: space.probe_many(keys).chain, "extends")

    def call(self, what: Callable[[kvrail.Namespace], T], otherwise: T) -> T:
        """A call of the namespace, or the default answer when it fails."""
        if (session := self.session) is None:
            return otherwise
        try:
            return what(session.space)
        except kvrail.KvrailError as error:
            self.failed(session, error)
            return otherwise

    def gone(self) -> list[kvrail.Gone]:
        """Blocks of the namespace that are gone since the last call. Events that the
        sidecar has dropped are logged, and so is a clear of the whole namespace."""
        session, now = self._session, time.monotonic()
        with self._lock:
            if session is None or now < self._look_at:
                return []
            self._look_at = now + FEED_S
        if not self._answers():
            return []
        try:
            gone, lost = session.events.poll(timeout=NEWS_S)
        except kvrail.KvrailError as error:
            self.failed(session, error)
            with self._lock:
                self._look_at = time.monotonic() + RETRY_S
            return []
        mine = [it for it in gone if it.uid == session.uid]
        if lost or any(it.why == "cleared" for it in mine):
            log.warning("kvrail for %s: %d blocks went unnoticed", self._engine, lost)
        return [it for it in mine if it.metadata]

    def failed(self, session: Session, error: kvrail.KvrailError) -> None:
        """Logs the error. A session that has ended is dropped: its lanes learn it from their
        queues. A sidecar that does not answer gets one request without a wait."""
        self._warnings.warn(type(error).__name__, "kvrail for %s: %s", self._engine, error)
        with self._lock:
            if self._session is not session:
                return
            if isinstance(error, kvrail.TimedOutError) and not self._asked:
                try:
                    self._ask(session)
                    self._asked = True
                except kvrail.KvrailError as other:
                    error = other
            if isinstance(error, ENDED):
                self._end()

    def keeps(self, gets: int, seconds: float) -> None:
        """Logs that memory of this number of gets is kept for longer than drives take."""
        text = (
            "kvrail for %s: a sidecar has ended %.0f s ago, and its drives may still write memory "
            "of %d loads, which is kept until they answer"
        )
        self._warnings.warn("keeps", text, self._engine, seconds, gets)

    def _answers(self) -> bool:
        """Whether the sidecar answers: one that did not is known to be back by the answer to the
        request of its pulse."""
        with self._lock:
            if not self._asked or self._session is None:
                return True
            self._feel(self._session)
            return not self._asked

    def silent_s(self) -> float:
        """Seconds for which the sidecar has not answered a question, which is asked here, without a
        wait for the answer."""
        with self._lock:
            if (session := self._session) is None:
                return 0.0
            self._feel(session)
            is_due = self._pulse_at is None and time.monotonic() >= self._pulse_next
            try:
                if is_due and self._session is session:
                    self._ask(session)
            except kvrail.KvrailError:
                self._end()
            return 0.0 if self._pulse_at is None else time.monotonic() - self._pulse_at

    def _ask(self, session: Session) -> None:
        if self._pulse_at is None:
            # A touch counts as no lookup.
            session.pulse.submit_lookup([b"pulse"], touch=True, timeout=PULSE_S)
            self._pulse_at = time.monotonic()

    def _feel(self, session: Session) -> None:
        """Takes the answer of the pulse, where it has come."""
        try:
            if self._pulse_at is not None and session.pulse.poll():
                self._asked, self._pulse_at = False, None
                self._pulse_next = time.monotonic() + PULSE_EACH_S
        except kvrail.KvrailError:
            self._end()

    def _end(self) -> None:
        """Lets a session go that has ended, but for the places of the engine's memory."""
        if self._session is not None:
            self._addresses = self._session.memory.addresses
        # The first try is at once: a worker learns late that the sidecar was there again long ago.
        self._session, self._asked, self._pulse_at = None, False, None

    def status(self) -> dict[str, Any]:
        """Its state, for the engine's own reports."""
        session, hangs = self.session, self.hangs
        return {
            "is_healthy": session is not None and not hangs,
            "socket": self._socket,
            "store": self._store,
            "namespace": self._named[0],
            "drive_hangs": hangs,
            "copied_bytes": session.client.copied_bytes if session else 0,
            "copies": session.memory.why_copied if session else None,
            "dropped_hints": session.client.dropped_hints if session else 0,
        }

    def close(self) -> None:
        """Ends the session; waits some seconds for requests in flight, and for a thread that
        attaches."""
        with self._lock:
            session, self._session, self._closed = self._session, None, True
            attaching = self._attaching
        if attaching is not None and attaching.is_alive():
            attaching.join(CLOSE_S)
        if session is not None:
            session.client.close()

    def _attach(self) -> Session:
        client = kvrail.Client(self._socket, name=self._engine, timeout=ATTACH_S)
        try:
            store = client.store(self._store)
            space, memory = store.namespace(*self._named), Memory(client, store.memory_alignment)
            space.probe(b"")  # later probes send no request
            uid, pulse = space.usage()["uid"], space.queue(1)
            memory.bring(self._addresses)
            tier, transfers, run = bool(space._tier_memory()), Transfers(client), client.epoch
            events = store.events()
            return Session(client, space, memory, events, uid, pulse, tier, transfers, run)
        except BaseException:
            client.close()
            raise

    def _attach_again(self) -> None:
        try:
            self._settle(self._attach(), None)
        except (kvrail.KvrailError, OSError) as error:
            self._settle(None, error)

    def _settle(self, session: Session | None, error: Exception | None) -> None:
        """Takes what a try to attach has brought."""
        with self._lock:
            self._attaching, self._retry_at = None, time.monotonic() + RETRY_S
            is_wanted = session is not None and not self._closed
            if is_wanted:
                self._session, self._asked, self._pulse_at = session, False, None
        if is_wanted:
            log.warning("kvrail for %s is attached again", self._engine)
        elif session is not None:
            session.client.close()
        elif not isinstance(error, kvrail.NoSidecarError):
            self._warnings.warn("attach", "kvrail for %s: %s", self._engine, error)
