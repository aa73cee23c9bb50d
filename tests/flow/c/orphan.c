/* The sidecar dies in the middle of waits: `orphan SOCKET VOLUME`. Prints "waiting" first. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <kvrail.h>

#define DEPTH 64

static void check(int32_t wanted, int32_t got, const char *what) {
    if (got != wanted) {
        fprintf(stderr, "%s: %s: %s\n", what, kvrail_status_name(got), kvrail_last_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    kvrail_client *client = NULL;
    kvrail_queue *queue = NULL;
    kvrail_volume_info volume = {.size = sizeof volume};
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = DEPTH * 4096};
    kvrail_arena_info arena = {.size = sizeof arena};
    kvrail_completion ends[DEPTH] = {{.size = sizeof *ends}};
    unsigned long long submitted = 0, ended = 0, restarted = 0;
    int32_t code = KVRAIL_OK;
    struct pollfd transfers = {.fd = -1};

    if (argc != 3) {
        return 2;
    }
    check(KVRAIL_OK, kvrail_attach(argv[1], NULL, &client), "attach");
    check(KVRAIL_OK, kvrail_volume_find(client, argv[2], &volume), "volume");
    check(KVRAIL_OK, kvrail_arena_create(client, &wanted, &arena), "arena");
    check(KVRAIL_OK, kvrail_queue_open(client, NULL, &queue), "queue");
    check(KVRAIL_OK, kvrail_client_watch_transfers(client, &transfers.fd), "watch");
    if (transfers.fd < 0 || poll(&transfers, 1, 0) != 0) {
        fputs("a sidecar that lives shows that its transfers have ended\n", stderr);
        return 1;
    }
    puts("waiting");
    fflush(stdout);
    while (code == KVRAIL_OK || code == KVRAIL_E_FULL || ended < submitted) {
        kvrail_request request = {.size = sizeof request, .opcode = KVRAIL_READ};
        size_t count = 0;
        request.volume = volume.volume;
        request.region = arena.region;
        request.length = 4096;
        for (int i = 0; i < DEPTH && (code == KVRAIL_OK || code == KVRAIL_E_FULL); i++) {
            request.position = (uint64_t)i * 4096;
            code = kvrail_submit(queue, &request, 1, NULL, &count);
            submitted += count;
            if (code != KVRAIL_OK) {
                break;
            }
        }
        ends[0].size = sizeof *ends;
        check(KVRAIL_OK, kvrail_wait(queue, ends, DEPTH, 1, KVRAIL_FOREVER, &count), "wait");
        ended += count;
        for (size_t i = 0; i < count; i++) {
            restarted += ends[i].status == KVRAIL_RESTARTED;
        }
    }
    check(KVRAIL_E_GONE, code, "submit");
    /* Before the arena's memory could be used for something else. */
    if (poll(&transfers, 1, 10000) != 1 || (transfers.revents & POLLHUP) == 0) {
        fputs("nothing shows that the transfers have ended\n", stderr);
        return 1;
    }
    close(transfers.fd);
    check(KVRAIL_E_GONE, kvrail_client_watch_transfers(client, &transfers.fd), "watch");
    check(KVRAIL_E_GONE, kvrail_arena_create(client, &wanted, &arena), "arena");
    check(KVRAIL_E_GONE, kvrail_queue_close(&queue, KVRAIL_FOREVER), "close the queue");
    check(KVRAIL_OK, kvrail_close(&client), "close");
    printf("%llu of %llu came back, %llu unknown\n", ended, submitted, restarted);
    return ended == submitted ? 0 : 1;
}
