/* What engines register, and requests that move it. */
#ifndef KVRAIL_NIXL_TRANSFER_H
#define KVRAIL_NIXL_TRANSFER_H

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "session.h"

/* Memory of this program, on the host or on a GPU. */
class Memory final : public core::Registered {
    uint8_t *base_;
    uint64_t bytes_;
    std::optional<int> gpu_;
    std::mutex mutex_;
    std::shared_ptr<Session> session_;
    std::optional<Place> place_;

  public:
    Memory(const core::Range &range, std::optional<int> gpu)
        : base_(reinterpret_cast<uint8_t *>(range.address)), bytes_(range.bytes), gpu_(gpu) {}
    ~Memory() override;
    /* Which GPU it is on; nothing if it is the host's. */
    std::optional<int> gpu() const { return gpu_; }
    /* Where an address of host memory is for the sidecar; nothing if its bytes are to be copied. */
    std::optional<Place> place(const std::shared_ptr<Session> &session, const uint8_t *address);
};

/* An object of the store. */
class Object final : public core::Registered {
  public:
    std::string name;
    /* The device number it is registered with. */
    uint64_t number;
    kvrail_key key{};

    Object(std::string name, uint64_t number);
};

/* A range of the volume. */
class Area final : public core::Registered {};

/* The text of a registered object, or its number if it has none, as NIXL's own back end has it. */
std::string name_of(const core::Described &described);

/* Bytes that go between one range of memory and one object or place of the volume. */
struct Piece {
    Memory *memory;
    uint8_t *address;
    uint64_t bytes;
    const Object *object;
    /* First byte in the object or volume. */
    uint64_t offset;
    /* Bytes of memory that the sidecar needs. */
    uint64_t room;
    /* The staging memory that they are in, while they are. */
    std::optional<Stage> staged;
    class Transfer *owner;

    /* Where its first byte is in the memory that the sidecar fills or reads. */
    uint64_t first() const { return object != nullptr ? offset : 0; }
};

/* One request of NIXL. Nothing happens but in its calls. */
class Transfer final : public core::Request {
    using Clock = std::chrono::steady_clock;
    core::Direction direction_;
    Link &link_;
    std::vector<Piece> pieces_;
    std::shared_ptr<Session> session_;
    std::deque<Piece *> waiting_;
    size_t flying_ = 0;
    /* Pieces that a GPU copies from or to staging memory. */
    size_t copying_ = 0;
    core::Status status_ = core::Status::done;
    Clock::time_point posted_{};
    /* Whether the session ended in a read into the memory, and the time for which hardware may
     * write there where nothing shows when it does not. */
    bool was_cut_ = false;
    Clock::time_point quiet_until_{};

    bool writes() const { return direction_ == core::Direction::write; }
    core::Status progress(uint64_t wait_ns);
    bool is_quiet() const;
    bool is_over() const { return flying_ + copying_ == 0 && waiting_.empty() && !is_quiet(); }
    bool leaves_gpu(const Piece &piece) const { return writes() && piece.memory->gpu(); }
    /* Begins to copy what is to be written from GPUs, as far as there is staging memory. */
    void gather();
    bool begin_copy(Piece &piece);
    Staging &staging_of(const Piece &piece);
    /* The sidecar's view of a piece's memory; nothing while there is no staging memory. */
    std::optional<Place> arrange(Piece &piece);
    void submit();
    template <class Wanted, class Submit> void submit_all(Submit submit);
    void fill(kvrail_block_request &wanted, const Piece &piece, Place place) const;
    void fill(kvrail_request &wanted, const Piece &piece, Place place) const;
    void unstage(Piece &piece);
    void fail(core::Status status, const std::string &why);
    /* Whether the piece goes on: a copy to a GPU has begun. */
    bool came(Piece &piece, const kvrail_completion &end);
    bool again(Piece &piece, const kvrail_completion &end);
    static void drain(Session &session, uint64_t wait_ns);
    static void take_copied(Session &session);

  public:
    Transfer(core::Direction direction, Link &link, const core::Ranges<core::Moved> &local,
             const core::Ranges<core::Moved> &remote);
    core::Status post();
    core::Status check();
    /* Ends when nothing of it is in flight. */
    void cancel();
    /* With the session's mutex: one of its pieces has ended, or its copy. */
    void ended(Piece &piece, const kvrail_completion &end);
    void copied(Piece &piece, const std::string &broken);
};

/* Bytes that were copied through staging memory, by all backends of this process. */
uint64_t copied_bytes();

#endif
