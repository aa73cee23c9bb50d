#include "kvrail_storage_backend.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "session.h"
#include "storage_backend.h"

namespace mooncake {
namespace {

using kvrail::Failure;
using kvrail::Item;
using kvrail::Session;
using kvrail::Settings;
using Clock = std::chrono::steady_clock;

// After a failed attempt to attach, calls fail at once for this time.
constexpr auto RETRY = std::chrono::milliseconds(500);
constexpr size_t LISTED = 512;
constexpr size_t GONE_MAX = 65536;

class KvrailStorageBackend final : public StorageBackendInterface {
    using Handler = std::function<ErrorCode(const std::vector<std::string> &,
                                            std::vector<StorageObjectMetadata> &)>;

    Settings settings_{};
    std::mutex mutex_;
    std::shared_ptr<Session> session_;
    Clock::time_point retry_at_{};
    std::mutex gone_mutex_;
    std::vector<std::string> gone_;

    // The session, attached again after the sidecar went away.
    std::shared_ptr<Session> session() {
        std::lock_guard guard(mutex_);
        if (session_ != nullptr && !session_->over()) return session_;
        if (Clock::now() < retry_at_) throw Failure("no sidecar a moment ago");
        session_.reset();
        try {
            return session_ = std::make_shared<Session>(settings_);
        } catch (const Failure &) {
            retry_at_ = Clock::now() + RETRY;
            throw;
        }
    }

    static tl::unexpected<ErrorCode> failed(ErrorCode code, const std::string &why) {
        LOG(ERROR) << "kvrail: " << why;
        return tl::make_unexpected(code);
    }

    // Once more where the namespace was cleared. Where the store has the name, Mooncake removed it:
    // other bytes of it give way (KVRAIL_REPLACE).
    static void put(Session &session, std::vector<Item> &items) {
        session.run(KVRAIL_PUT, items);
        auto rest = std::ranges::partition(
            items, [](const Item &item) { return item.note != KVRAIL_NOTE_STALE; });
        if (rest.empty()) return;
        std::vector<Item> again(std::make_move_iterator(rest.begin()),
                                std::make_move_iterator(rest.end()));
        items.erase(rest.begin(), rest.end());
        for (auto &item : again) item.status = KVRAIL_E_TIMEOUT;
        session.run(KVRAIL_PUT, again);
        std::ranges::move(again, std::back_inserter(items));
    }

    void remember_gone(std::vector<std::string> keys) {
        std::lock_guard guard(gone_mutex_);
        for (auto &key : keys)
            if (gone_.size() < GONE_MAX) gone_.push_back(std::move(key));
    }

    // Objects that a load missed or the store evicted, and that did not come again.
    std::vector<std::string> take_gone(Session &session) {
        std::vector<std::string> keys = session.evicted();
        {
            std::lock_guard guard(gone_mutex_);
            std::ranges::move(gone_, std::back_inserter(keys));
            gone_.clear();
        }
        std::ranges::sort(keys);
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        std::vector<kvrail_key> ids(keys.size());
        for (size_t i = 0; i < keys.size(); i++) ids[i] = Item(keys[i]).id;
        if (ids.empty()) return keys;
        auto there = session.probe(ids);
        size_t at = 0;
        std::erase_if(keys, [&](const auto &) { return there[at++] == KVRAIL_PRESENT; });
        return keys;
    }

  public:
    explicit KvrailStorageBackend(const FileStorageConfig &config)
        : StorageBackendInterface(config) {}

    tl::expected<void, ErrorCode> Init() override try {
        settings_ = Settings::of_environment();
        session();
        LOG(INFO) << "kvrail: store " << settings_.store << ", namespace " << settings_.space
                  << " at " << settings_.socket;
        return {};
    } catch (const Failure &failure) {
        return failed(ErrorCode::FILE_OPEN_FAIL, failure.what());
    }

    // `done` gets all objects. One that was not stored has -1 bytes there, so that Mooncake does
    // not wait for it.
    tl::expected<int64_t, ErrorCode> BatchOffload(
        const std::unordered_map<std::string, std::vector<Slice>> &batch, Handler done,
        EvictionHandler) override try {
        auto session = this->session();
        std::vector<Item> items, refused;
        for (const auto &[key, slices] : batch) {
            Item item(key);
            for (const auto &slice : slices) item.add(slice.ptr, slice.size);
            bool fits = item.bytes > 0 && item.bytes <= session->block_bytes_max() &&
                        key.size() <= KVRAIL_METADATA_BYTES;
            if (!fits) item.status = KVRAIL_INVALID;
            (fits ? items : refused).push_back(std::move(item));
        }
        put(*session, items);
        std::ranges::move(refused, std::back_inserter(items));
        const int64_t stored = std::ranges::count_if(items, &Item::done);
        auto lacks = std::ranges::find_if_not(items, &Item::done);
        if (lacks != items.end())
            LOG(WARNING) << "kvrail: " << items.size() - stored << " of " << items.size()
                         << " objects were not stored: " << lacks->key << " of " << lacks->bytes
                         << " bytes: " << lacks->why();
        if (stored == 0) return tl::make_unexpected(ErrorCode::FILE_WRITE_FAIL);
        std::vector<std::string> keys;
        std::vector<StorageObjectMetadata> about;
        for (const auto &item : items) {
            keys.push_back(item.key);
            about.push_back({-1, 0, static_cast<int64_t>(item.key.size()),
                             item.done() ? static_cast<int64_t>(item.bytes) : -1, ""});
        }
        ErrorCode code = done != nullptr ? done(keys, about) : ErrorCode::OK;
        if (code != ErrorCode::OK) return tl::make_unexpected(code);
        return stored;
    } catch (const Failure &failure) {
        return failed(ErrorCode::FILE_WRITE_FAIL, failure.what());
    }

    tl::expected<void, ErrorCode> BatchLoad(
        std::unordered_map<std::string, Slice> &slices) override try {
        auto session = this->session();
        std::vector<Item> items;
        for (const auto &[key, slice] : slices) items.emplace_back(key).add(slice.ptr, slice.size);
        session->run(KVRAIL_GET, items);
        std::vector<std::string> missed;
        for (const auto &item : items)
            if (item.status == KVRAIL_MISS && item.note != KVRAIL_NOTE_WARMING)
                missed.push_back(item.key);
        remember_gone(missed);
        auto lacks = std::ranges::find_if_not(items, &Item::done);
        if (lacks == items.end()) return {};
        return failed(missed.empty() ? ErrorCode::FILE_READ_FAIL : ErrorCode::OBJECT_NOT_FOUND,
                      lacks->key + " was not loaded: " + lacks->why());
    } catch (const Failure &failure) {
        return failed(ErrorCode::FILE_READ_FAIL, failure.what());
    }

    tl::expected<bool, ErrorCode> IsExist(const std::string &key) override try {
        return session()->probe({Item(key).id})[0] != KVRAIL_ABSENT;
    } catch (const Failure &failure) {
        return failed(ErrorCode::FILE_READ_FAIL, failure.what());
    }

    // The store makes room by itself.
    tl::expected<bool, ErrorCode> IsEnableOffloading() override { return true; }

    tl::expected<void, ErrorCode> ScanMeta(const Handler &found) override try {
        auto session = this->session();
        kvrail::Handle<kvrail_listing> listing(kvrail_listing_close);
        kvrail::require(kvrail_namespace_list(session->space(), listing.out()), "listing");
        std::vector<kvrail_block_info> blocks(LISTED);
        for (size_t count = 1; count > 0;) {
            blocks[0].size = sizeof blocks[0];
            kvrail::require(
                kvrail_listing_next(listing, blocks.data(), LISTED, &count, nullptr), "listing");
            std::vector<std::string> keys;
            std::vector<StorageObjectMetadata> about;
            for (size_t i = 0; i < count; i++) {
                const auto &it = blocks[i];
                if (it.metadata_bytes == 0) continue;
                keys.emplace_back(reinterpret_cast<const char *>(it.metadata), it.metadata_bytes);
                about.push_back({-1, 0, it.metadata_bytes, it.length, ""});
            }
            ErrorCode code = keys.empty() ? ErrorCode::OK : found(keys, about);
            if (code != ErrorCode::OK) return tl::make_unexpected(code);
        }
        return {};
    } catch (const Failure &failure) {
        return failed(ErrorCode::FILE_READ_FAIL, failure.what());
    }

    // Mooncake empties itself.
    void RemoveAll() override try {
        kvrail::require(kvrail_namespace_clear(session()->space()), "clearing");
    } catch (const Failure &failure) {
        LOG(ERROR) << "kvrail: " << failure.what();
    }

    // Mooncake calls this at every heartbeat. The store evicts by itself: Mooncake gets the evicted
    // keys.
    tl::expected<std::vector<std::string>, ErrorCode> EvictAboveDiskWatermark(
        double, double, EvictionHandler notify) override try {
        auto keys = take_gone(*session());
        if (keys.empty() || notify == nullptr) return keys;
        if (auto notified = notify(keys); !notified) {
            remember_gone(keys);
            return tl::make_unexpected(notified.error());
        }
        return keys;
    } catch (const Failure &failure) {
        return failed(ErrorCode::FILE_READ_FAIL, failure.what());
    }
};

}  // namespace

std::shared_ptr<StorageBackendInterface> CreateKvrailStorageBackend(
    const FileStorageConfig &config) {
    return std::make_shared<KvrailStorageBackend>(config);
}

}  // namespace mooncake
