/* What engines register, and requests that move it. */
#ifndef KVRAIL_NIXL_TRANSFER_H
#define KVRAIL_NIXL_TRANSFER_H

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "session.h"

/* Host memory of this program. */
class Memory final : public core::Registered {
    uint8_t *base_;
    uint64_t bytes_;
    std::mutex mutex_;
    std::shared_ptr<Session> session_;
    std::optional<Place> place_;

  public:
    explicit Memory(const core::Range &range)
        : base_(reinterpret_cast<uint8_t *>(range.address)), bytes_(range.bytes) {}
    ~Memory() override;
    /* Where an address in it is for the sidecar; nothing if its bytes have to be copied. */
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
    core::Status status_ = core::Status::done;
    Clock::time_point posted_{};
    /* Until then hardware may still write the memory. */
    Clock::time_point quiet_until_{};

    bool writes() const { return direction_ == core::Direction::write; }
    core::Status progress(uint64_t wait_ns);
    bool is_quiet() const;
    /* The sidecar's view of a piece's memory; nothing while there is no staging memory. */
    std::optional<Place> arrange(Piece &piece);
    void submit();
    template <class Wanted, class Submit> void submit_all(Submit submit);
    void fill(kvrail_block_request &wanted, const Piece &piece, Place place) const;
    void fill(kvrail_request &wanted, const Piece &piece, Place place) const;
    void unstage(Piece &piece);
    void fail(core::Status status, const std::string &why);
    void came(Piece &piece, const kvrail_completion &end);
    bool again(Piece &piece, const kvrail_completion &end);
    static void drain(Session &session, uint64_t wait_ns);

  public:
    Transfer(core::Direction direction, Link &link, const core::Ranges<core::Moved> &local,
             const core::Ranges<core::Moved> &remote);
    core::Status post();
    core::Status check();
    /* Ends when nothing of it is in flight. */
    void cancel();
    /* With the session's mutex: one of its pieces has ended. */
    void ended(Piece &piece, const kvrail_completion &end);
};

/* Bytes that were copied through staging memory, by all backends of this process. */
uint64_t copied_bytes();

#endif
