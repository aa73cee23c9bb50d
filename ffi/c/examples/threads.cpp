// Each of several threads moves blocks through a queue of its own: `threads SOCKET VOLUME`.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <kvrail.h>

namespace {

constexpr unsigned thread_count = 4;
constexpr unsigned rounds = 32;
constexpr std::uint64_t block_bytes = 64 << 10;

void check(std::int32_t code) {
    if (code != KVRAIL_OK) {
        throw std::runtime_error(std::string(kvrail_status_name(code)) + ": " +
                                 kvrail_last_error());
    }
}

struct CloseClient {
    void operator()(kvrail_client *client) const { kvrail_close(&client); }
};
struct CloseQueue {
    void operator()(kvrail_queue *queue) const { kvrail_queue_close(&queue, KVRAIL_FOREVER); }
};
using Client = std::unique_ptr<kvrail_client, CloseClient>;
using Queue = std::unique_ptr<kvrail_queue, CloseQueue>;

Client attach(const char *socket) {
    kvrail_client *client = nullptr;
    check(kvrail_attach(socket, nullptr, &client));
    return Client(client);
}

Queue open_queue(const Client &client) {
    kvrail_queue *queue = nullptr;
    check(kvrail_queue_open(client.get(), nullptr, &queue));
    return Queue(queue);
}

// Moves one block and waits for it.
void move(const Queue &queue, const kvrail_request &request) {
    kvrail_completion end{};
    end.size = sizeof end;
    std::size_t count = 0;
    check(kvrail_submit(queue.get(), &request, 1, nullptr, nullptr));
    check(kvrail_wait(queue.get(), &end, 1, 1, KVRAIL_FOREVER, &count));
    check(end.status);
}

void work(const Client &client, std::uint32_t volume, const kvrail_arena_info &arena, unsigned me) {
    Queue queue = open_queue(client);
    kvrail_request request{};
    request.size = sizeof request;
    request.volume = volume;
    request.region = arena.region;
    request.offset = request.position = me * block_bytes;
    request.length = block_bytes;
    auto *bytes = static_cast<unsigned char *>(arena.base) + request.position;
    for (unsigned round = 0; round < rounds; round++) {
        const auto pattern = static_cast<unsigned char>(me * rounds + round);
        std::memset(bytes, pattern, block_bytes);
        request.opcode = KVRAIL_WRITE;
        move(queue, request);
        std::memset(bytes, 0, block_bytes);
        request.opcode = KVRAIL_READ;
        move(queue, request);
        for (std::uint64_t at = 0; at < block_bytes; at++) {
            if (bytes[at] != pattern) {
                throw std::runtime_error("a wrong byte");
            }
        }
    }
}

void run(const char *socket, const char *name) {
    Client client = attach(socket);
    kvrail_volume_info volume{};
    volume.size = sizeof volume;
    check(kvrail_volume_find(client.get(), name, &volume));
    kvrail_arena_options wanted{};
    wanted.size = sizeof wanted;
    wanted.bytes = thread_count * block_bytes;
    kvrail_arena_info arena{};
    arena.size = sizeof arena;
    check(kvrail_arena_create(client.get(), &wanted, &arena));

    std::vector<std::thread> threads;
    std::vector<std::string> errors(thread_count);
    for (unsigned me = 0; me < thread_count; me++) {
        threads.emplace_back([&, me] {
            try {
                work(client, volume.volume, arena, me);
            } catch (const std::exception &error) {
                errors[me] = error.what();
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    for (const auto &error : errors) {
        if (!error.empty()) {
            throw std::runtime_error(error);
        }
    }
    check(kvrail_arena_detach(client.get(), arena.region));
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s SOCKET VOLUME\n", argv[0]);
        return 2;
    }
    try {
        run(argv[1], argv[2]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::printf("%u threads, %u rounds: right\n", thread_count, rounds);
    return 0;
}
