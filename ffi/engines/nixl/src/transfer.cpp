#include "transfer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string_view>
#include <thread>
#include <unordered_set>

using core::Status;
using namespace std::chrono_literals;

/* How long memory that was being filled when a sidecar died is kept, where nothing shows when its
 * drives write there no more. */
constexpr auto QUARANTINE = 5s;
/* How long a put is tried again that the store has no place for. */
constexpr auto PATIENCE = 30s;
constexpr uint64_t WAIT_NS = 50'000'000;
constexpr size_t BATCH = 64;

static std::atomic<uint64_t> copied{0};

uint64_t copied_bytes() { return copied; }

static void copy(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    std::memcpy(to, from, bytes);
    copied += bytes;
}

Memory::~Memory() {
    if (place_) session_->forget(place_->region);
}

std::optional<Place> Memory::place(const std::shared_ptr<Session> &session,
                                   const uint8_t *address) {
    std::lock_guard guard(mutex_);
    if (session_ != session) {
        std::string why;
        session_ = session;
        place_ = session->find(base_, bytes_, why);
        if (!place_) print("memory is copied once more: " + why);
    }
    if (!place_) return {};
    return Place{place_->region, place_->position + static_cast<uint64_t>(address - base_)};
}

Object::Object(std::string text, uint64_t device) : name(std::move(text)), number(device) {
    require(kvrail_key_of(name.data(), name.size(), &key), "key " + name);
}

std::string name_of(const core::Described &described) {
    return described.text.empty() ? std::to_string(described.device) : described.text;
}

Transfer::Transfer(core::Direction direction, Link &link, const core::Ranges<core::Moved> &local,
                   const core::Ranges<core::Moved> &remote)
    : direction_(direction), link_(link) {
    if (local.segment != core::Segment::host && local.segment != core::Segment::gpu)
        throw Failure(Status::unsupported, "the local side is neither DRAM nor VRAM");
    if (local.items.size() != remote.items.size())
        throw Failure(Status::mismatch, "the sides have not as many descriptors");
    std::unordered_set<std::string_view> written;
    for (size_t at = 0; at < local.items.size(); at++) {
        const core::Moved &here = local.items[at], &there = remote.items[at];
        const auto *object = dynamic_cast<const Object *>(there.registered);
        if (here.bytes != there.bytes || here.bytes == 0)
            throw Failure(Status::mismatch, "descriptor " + std::to_string(at) + ": " +
                                                std::to_string(here.bytes) + " and " +
                                                std::to_string(there.bytes) + " bytes");
        if (writes() && object != nullptr && there.address != 0)
            throw Failure(Status::invalid, "object " + object->name + ": a write at byte " +
                                               std::to_string(there.address) +
                                               "; objects are written whole, from byte 0");
        if (writes() && object != nullptr && !written.insert(object->name).second)
            throw Failure(Status::invalid, "object " + object->name +
                                               ": one request writes it twice; write it once, or "
                                               "in two requests, one after the other");
        uint64_t room = here.bytes + (object != nullptr ? there.address : 0);
        pieces_.push_back({dynamic_cast<Memory *>(here.registered),
                           reinterpret_cast<uint8_t *>(here.address), here.bytes, object,
                           there.address, room, {}, this});
    }
}

Status Transfer::post() {
    session_ = link_.session();
    status_ = Status::done;
    posted_ = Clock::now();
    was_cut_ = false;
    quiet_until_ = {};
    waiting_.clear();
    for (Piece &piece : pieces_) waiting_.push_back(&piece);
    {
        std::lock_guard guard(session_->mutex);
        session_->enter(*this);
    }
    return check();
}

Status Transfer::check() { return progress(0); }

void Transfer::cancel() {
    if (session_ == nullptr) return;
    {
        std::lock_guard guard(session_->mutex);
        for (Piece *piece : waiting_) unstage(*piece);
        waiting_.clear();
        status_ = Status::failed;
    }
    while (progress(WAIT_NS) == Status::in_progress)
        if (is_quiet() || copying_ > 0) std::this_thread::sleep_for(copying_ > 0 ? 50us : 1ms);
}

Status Transfer::progress(uint64_t wait_ns) {
    std::lock_guard guard(session_->mutex);
    if (flying_ + copying_ > 0 || !waiting_.empty()) {
        drain(*session_, flying_ > 0 ? wait_ns : 0);
        take_copied(*session_);
        /* Of all transfers: one that is never checked must not keep the staging memory. */
        for (Transfer *it : session_->open()) it->submit();
        if (auto *copier = session_->copier()) copier->flush();
    }
    if (!is_over()) return Status::in_progress;
    session_->leave(*this);
    return status_;
}

bool Transfer::is_quiet() const {
    if (quiet_until_ == Clock::time_point{} || session_->transfers().hung_up()) return false;
    if (Clock::now() < quiet_until_) return true;
    /* A drive of a sidecar that has ended may answer whenever it can: no time is long enough. */
    return was_cut_ && session_->transfers().shows() && !link_.lives_on(*session_);
}

void Transfer::drain(Session &session, uint64_t wait_ns) {
    std::array<kvrail_completion, BATCH> ends{};
    ends[0].size = sizeof ends[0];
    size_t count = 0;
    do {
        int32_t code = wait_ns == 0
                           ? kvrail_poll(session.queue(), ends.data(), ends.size(), &count)
                           : kvrail_wait(session.queue(), ends.data(), ends.size(), 1, wait_ns,
                                         &count);
        for (size_t at = 0; at < count; at++) {
            auto *piece = reinterpret_cast<Piece *>(ends[at].tag);
            piece->owner->ended(*piece, ends[at]);
        }
        if (code != KVRAIL_OK && code != KVRAIL_E_TIMEOUT) session.end();
        wait_ns = 0;
    } while (count == ends.size());
}

void Transfer::take_copied(Session &session) {
    Copier *copier = session.copier();
    if (copier == nullptr) return;
    while (auto piece = copier->next()) (*piece)->owner->copied(**piece, copier->broken());
}

Staging &Transfer::staging_of(const Piece &piece) {
    auto gpu = piece.memory->gpu();
    return gpu ? session_->gpu_way(*gpu).staging : session_->staging();
}

bool Transfer::begin_copy(Piece &piece) {
    GpuWay way = session_->gpu_way(*piece.memory->gpu());
    if (!piece.staged) piece.staged = way.staging.take(piece.room);
    if (!piece.staged) return false;
    way.copier.begin({direction_, *piece.memory->gpu(),
                      reinterpret_cast<uintptr_t>(piece.address),
                      way.staging.at(*piece.staged) + piece.first(), piece.bytes},
                     &piece);
    copying_++;
    return true;
}

void Transfer::gather() {
    for (size_t left = waiting_.size(); left > 0; left--) {
        Piece *piece = waiting_.front();
        bool is_leaving = leaves_gpu(*piece) && !piece->staged && begin_copy(*piece);
        waiting_.pop_front();
        if (!is_leaving) waiting_.push_back(piece);
    }
}

std::optional<Place> Transfer::arrange(Piece &piece) {
    if (leaves_gpu(piece) && !piece.staged) return {};
    if (piece.staged) return Place{staging_of(piece).region(), piece.staged->position};
    bool is_mapped = piece.room == piece.bytes && !piece.memory->gpu();
    auto place = is_mapped ? piece.memory->place(session_, piece.address) : std::nullopt;
    uint64_t unit = session_->volume().memory_alignment;
    if (place && place->position % unit == 0) return place;
    Staging &staging = staging_of(piece);
    piece.staged = staging.take(piece.room);
    if (!piece.staged) return {};
    if (writes()) copy(staging.at(*piece.staged), piece.address, piece.bytes);
    return Place{staging.region(), piece.staged->position};
}

void Transfer::fill(kvrail_block_request &wanted, const Piece &piece, Place place) const {
    wanted = {.size = sizeof wanted,
              .opcode = static_cast<uint8_t>(writes() ? KVRAIL_PUT : KVRAIL_GET),
              .flags = static_cast<uint16_t>(writes() ? KVRAIL_REPLACE : 0),
              .key = piece.object->key,
              .region = place.region,
              .position = place.position,
              .length = piece.room,
              .tag = reinterpret_cast<uint64_t>(&piece)};
}

void Transfer::fill(kvrail_request &wanted, const Piece &piece, Place place) const {
    wanted = {.size = sizeof wanted,
              .opcode = static_cast<uint8_t>(writes() ? KVRAIL_WRITE : KVRAIL_READ),
              .volume = session_->volume().volume,
              .region = place.region,
              .offset = piece.offset,
              .position = place.position,
              .length = piece.room,
              .tag = reinterpret_cast<uint64_t>(&piece)};
}

template <class Wanted, class Submit> void Transfer::submit_all(Submit submit) {
    std::array<Wanted, BATCH> wanted{};
    while (!waiting_.empty()) {
        size_t count = 0, taken = 0;
        for (; count < std::min(BATCH, waiting_.size()); count++) {
            auto place = arrange(*waiting_[count]);
            if (!place) break;
            fill(wanted[count], *waiting_[count], *place);
        }
        if (count == 0) return;
        int32_t code = submit(wanted.data(), count, &taken);
        for (size_t at = taken; at < count; at++)
            if (!leaves_gpu(*waiting_[at])) unstage(*waiting_[at]);
        waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(taken));
        flying_ += taken;
        if (code == KVRAIL_E_FULL) return;
        if (code == KVRAIL_E_GONE) session_->end();
        require(code, "request");
    }
}

void Transfer::submit() {
    if (waiting_.empty()) return;
    try {
        const auto *copier = session_->copier();
        if (copier != nullptr && !copier->broken().empty() && pieces_.front().memory->gpu())
            throw Failure(Status::failed, copier->broken());
        gather();
        if (pieces_.front().object != nullptr)
            submit_all<kvrail_block_request>([this](auto *wanted, size_t count, size_t *taken) {
                return kvrail_submit_blocks(session_->queue(), session_->space(), wanted, count,
                                            nullptr, taken);
            });
        else
            submit_all<kvrail_request>([this](auto *wanted, size_t count, size_t *taken) {
                return kvrail_submit(session_->queue(), wanted, count, nullptr, taken);
            });
    } catch (const Failure &failure) {
        fail(failure.status(), failure.what());
    }
}

void Transfer::unstage(Piece &piece) {
    if (piece.staged) staging_of(piece).give(*piece.staged);
    piece.staged.reset();
}

void Transfer::fail(Status status, const std::string &why) {
    for (Piece *piece : waiting_) unstage(*piece);
    waiting_.clear();
    if (status_ != Status::done) return;
    status_ = status;
    if (status != Status::not_found) print(why);
}

/* Whether a piece that did not move is tried again. */
bool Transfer::again(Piece &piece, const kvrail_completion &end) {
    if (end.status == KVRAIL_TOO_SMALL) {
        piece.room = end.bytes;
        return true;
    }
    if (end.note == KVRAIL_NOTE_STALE) {
        bool is_fresh = kvrail_namespace_refresh(session_->space()) == KVRAIL_OK;
        return is_fresh && end.status == KVRAIL_DECLINED && Clock::now() < posted_ + PATIENCE;
    }
    switch (end.note) {
    case KVRAIL_NOTE_PENDING:
    case KVRAIL_NOTE_BUSY:
    case KVRAIL_NOTE_INDEX_FULL:
    case KVRAIL_NOTE_STARTING: return Clock::now() < posted_ + PATIENCE;
    default: return false;
    }
}

bool Transfer::came(Piece &piece, const kvrail_completion &end) {
    if (writes()) return false;
    uint64_t until = piece.offset + piece.bytes;
    if (piece.object != nullptr && end.bytes < until) {
        fail(Status::mismatch, "object " + piece.object->name + " has " +
                                   std::to_string(end.bytes) + " bytes; bytes up to " +
                                   std::to_string(until) + " were requested");
        return false;
    }
    if (!piece.staged) return false;
    if (!piece.memory->gpu()) {
        copy(piece.address, staging_of(piece).at(*piece.staged) + piece.first(), piece.bytes);
        return false;
    }
    if (status_ != Status::done) return false;
    try {
        return begin_copy(piece);
    } catch (const Failure &failure) {
        fail(failure.status(), failure.what());
        return false;
    }
}

void Transfer::copied(Piece &piece, const std::string &broken) {
    copying_--;
    if (!broken.empty()) {
        /* Its staging memory is lost: the GPU may still touch it. */
        piece.staged.reset();
        return fail(Status::failed, broken);
    }
    /* In front of those that wait for staging memory. */
    if (writes() && status_ == Status::done) return waiting_.push_front(&piece);
    unstage(piece);
}

void Transfer::ended(Piece &piece, const kvrail_completion &end) {
    flying_--;
    bool is_declined = end.status == KVRAIL_DECLINED;
    bool is_pending = end.status == KVRAIL_OK && end.note == KVRAIL_NOTE_PENDING;
    if (end.status == KVRAIL_OK && !is_pending && came(piece, end)) return;
    bool is_again = (is_declined || is_pending || end.status == KVRAIL_TOO_SMALL ||
                     end.status == KVRAIL_MISS) && again(piece, end);
    bool was_direct = !piece.staged;
    unstage(piece);
    if (is_again && status_ == Status::done) return waiting_.push_back(&piece);
    if (end.status == KVRAIL_OK && !is_pending) return;
    if (end.status == KVRAIL_RESTARTED) session_->end();
    /* A queue that is not believed ends its requests as INTERNAL, and the drives go on. */
    bool is_cut = end.status == KVRAIL_RESTARTED || end.status == KVRAIL_INTERNAL;
    if (is_cut && !writes() && was_direct) {
        was_cut_ = was_cut_ || end.status == KVRAIL_RESTARTED;
        quiet_until_ = Clock::now() + QUARANTINE;
    }
    std::string what = piece.object != nullptr ? "object " + piece.object->name
                                               : "byte " + std::to_string(piece.offset);
    const char *why = end.note != KVRAIL_NOTE_NONE ? kvrail_note_meaning(end.note)
                                                   : kvrail_status_meaning(end.status);
    fail(status_of(end.status), what + ": " + why + " (" + kvrail_status_name(end.status) + ")");
}
