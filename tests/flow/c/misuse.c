/* Every wrong use ends in the code the header promises: `misuse SOCKET VOLUME`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvrail.h>

static kvrail_client *client;
static kvrail_queue *queue;
static kvrail_volume_info volume = {.size = sizeof volume};
static kvrail_arena_info arena = {.size = sizeof arena};

/* Checks the code, and that an error has words. */
#define EXPECT(wanted, call)                                                                      \
    do {                                                                                          \
        int32_t got = (call);                                                                     \
        if (got != (wanted) || (got != KVRAIL_OK && strlen(kvrail_last_error()) < 10)) {          \
            fprintf(stderr, "line %d: %s, not %s: %s\n", __LINE__, kvrail_status_name(got),       \
                    kvrail_status_name(wanted), kvrail_last_error());                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static kvrail_request a_read(void) {
    kvrail_request request = {.size = sizeof request, .opcode = KVRAIL_READ};
    request.volume = volume.volume;
    request.region = arena.region;
    request.length = 4096;
    return request;
}

static int32_t submit(kvrail_request request) {
    size_t count = 7;
    int32_t code = kvrail_submit(queue, &request, 1, NULL, &count);
    if (count != (code == KVRAIL_OK)) {
        fprintf(stderr, "%zu submitted with %s\n", count, kvrail_status_name(code));
        exit(1);
    }
    return code;
}

static int32_t wait_for_one(void) {
    kvrail_completion end = {.size = sizeof end};
    size_t count = 0;
    int32_t code = kvrail_wait(queue, &end, 1, 1, 10000000000u, &count);
    return code != KVRAIL_OK ? code : count == 1 ? end.status : KVRAIL_E_TIMEOUT;
}

static void nulls(const char *socket) {
    kvrail_client *nobody = NULL;
    kvrail_queue *nothing = NULL;
    kvrail_request request = a_read();
    size_t count;
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_attach(NULL, NULL, &nobody));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_attach(socket, NULL, NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_close(NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_close(&nobody));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_volume_find(NULL, "kv", &volume));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_volume_find(client, NULL, &volume));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_volume_find(client, "kv", NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_volume_find(client, "\xff", &volume));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_queue_close(&nothing, 0));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_queue_open(client, NULL, NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_arena_create(client, NULL, &arena));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_client_watch_transfers(client, NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_submit(NULL, &request, 1, NULL, NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_submit(queue, NULL, 1, NULL, NULL));
    EXPECT(KVRAIL_OK, kvrail_submit(queue, NULL, 0, NULL, NULL));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_poll(queue, NULL, 1, &count));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_poll(queue, NULL, 0, NULL));
    EXPECT(KVRAIL_E_NO_VOLUME, kvrail_volume_at(client, 77, &volume));
    EXPECT(KVRAIL_E_NO_VOLUME, kvrail_volume_find(client, "nowhere", &volume));
    EXPECT(KVRAIL_E_NO_SIDECAR, kvrail_attach("/nowhere/at/all", NULL, &nobody));
}

static void requests(void) {
    const struct {
        int32_t code;
        kvrail_request request;
    } bad[] = {
        {KVRAIL_E_ARGUMENT, {.opcode = 99}},
        {KVRAIL_E_ARGUMENT, {.opcode = KVRAIL_READ, .priority = 3}},
        {KVRAIL_E_ARGUMENT, {.opcode = KVRAIL_READ, .flags = 64}},
        {KVRAIL_E_NO_VOLUME, {.opcode = KVRAIL_READ, .volume = 9}},
        {KVRAIL_E_REFUSED, {.opcode = KVRAIL_READ, .offset = 100}},
        {KVRAIL_E_REFUSED, {.opcode = KVRAIL_READ, .offset = (uint64_t)-4096}},
        {KVRAIL_E_REFUSED, {.opcode = KVRAIL_WRITE, .offset = 1ull << 62}},
        {KVRAIL_E_MEMORY, {.opcode = KVRAIL_READ, .position = 1ull << 62}},
        {KVRAIL_E_MEMORY, {.opcode = KVRAIL_READ, .position = (uint64_t)-4096}},
        {KVRAIL_E_MEMORY, {.opcode = KVRAIL_READ, .length = UINT64_MAX}},
        {KVRAIL_E_REFUSED, {.opcode = KVRAIL_FLUSH, .flags = KVRAIL_DURABLE}},
        {KVRAIL_E_REFUSED, {.opcode = KVRAIL_NOP, .offset = 9999}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvrail_request request = bad[i].request;
        request.size = sizeof request;
        request.region = arena.region;
        request.length += request.length ? 0 : 4096;
        EXPECT(bad[i].code, submit(request));
    }
    kvrail_request request = a_read();
    request.region = 0;
    EXPECT(KVRAIL_E_NO_ARENA, submit(request));
    request.region = arena.region + 1;
    EXPECT(KVRAIL_E_NO_ARENA, submit(request));
    request = a_read();
    request.size = 12;
    EXPECT(KVRAIL_E_ARGUMENT, submit(request));
    /* An older header, without tag, checksum and deadline. */
    request = a_read();
    request.size = offsetof(kvrail_request, tag);
    request.tag = 5;
    EXPECT(KVRAIL_OK, submit(request));
    EXPECT(KVRAIL_OK, wait_for_one());
}

/* A newer header than the library's. */
static void newer(void) {
    struct {
        kvrail_queue_options known;
        uint64_t more;
    } options = {{.size = sizeof options, .depth = 2}, 0};
    kvrail_queue *other = NULL;
    EXPECT(KVRAIL_OK, kvrail_queue_open(client, &options.known, &other));
    kvrail_request two[3] = {a_read(), a_read(), a_read()};
    size_t count = 0;
    EXPECT(KVRAIL_E_FULL, kvrail_submit(other, two, 3, NULL, &count));
    EXPECT(KVRAIL_OK, count == 2 ? KVRAIL_OK : KVRAIL_E_FULL);
    EXPECT(KVRAIL_OK, kvrail_queue_close(&other, KVRAIL_FOREVER));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_submit(other, two, 1, NULL, NULL));
    options.more = 1;
    EXPECT(KVRAIL_E_NEWER, kvrail_queue_open(client, &options.known, &other));
}

static void memory(void) {
    kvrail_arena_info other = {.size = sizeof other};
    kvrail_arena_options options = {.size = sizeof options, .bytes = 1ull << 60};
    int fd = memfd_create("unsealed", MFD_CLOEXEC);
    EXPECT(KVRAIL_QUOTA, kvrail_arena_create(client, &options, &other));
    options.bytes = 0;
    EXPECT(KVRAIL_INVALID, kvrail_arena_create(client, &options, &other));
    options.pages = 9;
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_arena_create(client, &options, &other));
    EXPECT(KVRAIL_E_ARGUMENT, kvrail_arena_import(client, -1, 4096, &other));
    EXPECT(KVRAIL_E_SYSTEM, kvrail_arena_import(client, 12345, 4096, &other));
    EXPECT(KVRAIL_INVALID, kvrail_arena_import(client, fd, 4096, &other));
    close(fd);
    EXPECT(KVRAIL_E_NO_ARENA, kvrail_arena_detach(client, 4242));
    EXPECT(KVRAIL_OK, kvrail_arena_detach(client, arena.region));
    EXPECT(KVRAIL_E_NO_ARENA, kvrail_arena_detach(client, arena.region));
    EXPECT(KVRAIL_E_NO_ARENA, submit(a_read()));
}

static void child(void) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        kvrail_client_info info = {.size = sizeof info};
        size_t count;
        EXPECT(KVRAIL_E_FORKED, kvrail_client_describe(client, &info));
        EXPECT(KVRAIL_E_FORKED, submit(a_read()));
        EXPECT(KVRAIL_E_FORKED, kvrail_poll(queue, NULL, 0, &count));
        EXPECT(KVRAIL_E_FORKED, kvrail_queue_close(&queue, 0));
        EXPECT(KVRAIL_OK, kvrail_close(&client));
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "the child ended with %d\n", status);
        exit(1);
    }
}

/* A sidecar that refuses every client: accepts one and sends this answer. */
static void *refuse(void *answer) {
    char hello[4096];
    const int *listener = answer;
    const char *code = (const char *)(listener + 1);
    int peer = accept(*listener, NULL, NULL);
    ssize_t received = recv(peer, hello, sizeof hello, 0);
    char reply[256];
    int bytes = snprintf(reply, sizeof reply,
                         "{\"Reply\":{\"seq\":1,\"answer\":{\"Refused\":{\"code\":\"%s\","
                         "\"message\":\"it speaks protocol 9.0\"}}}}",
                         code);
    if (received <= 0 || send(peer, reply, (size_t)bytes, MSG_NOSIGNAL) != bytes) {
        exit(1);
    }
    close(peer);
    return NULL;
}

static void refused(int32_t wanted, const char *code) {
    struct {
        int listener;
        char code[16];
    } answer = {.listener = socket(AF_UNIX, SOCK_SEQPACKET, 0)};
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    char folder[] = "/tmp/kvrail-misuse-XXXXXX";
    kvrail_client *nobody = NULL;
    pthread_t thread;
    if (mkdtemp(folder) == NULL) {
        exit(1);
    }
    snprintf(answer.code, sizeof answer.code, "%s", code);
    snprintf(path.sun_path, sizeof path.sun_path, "%s/s", folder);
    if (bind(answer.listener, (struct sockaddr *)&path, sizeof path) != 0 ||
        listen(answer.listener, 1) != 0) {
        exit(1);
    }
    pthread_create(&thread, NULL, refuse, &answer);
    EXPECT(wanted, kvrail_attach(path.sun_path, NULL, &nobody));
    EXPECT(KVRAIL_OK, nobody == NULL ? KVRAIL_OK : KVRAIL_E_PANIC);
    pthread_join(thread, NULL);
    close(answer.listener);
    unlink(path.sun_path);
    rmdir(folder);
}

static void *wait_a_second(void *none) {
    kvrail_completion end = {.size = sizeof end};
    size_t count;
    (void)none;
    /* Nothing is in flight: ends at once, or fails because another thread uses the queue. */
    for (int i = 0; i < 1000; i++) {
        int32_t code = kvrail_wait(queue, &end, 1, 1, 1000000, &count);
        if (code != KVRAIL_OK && code != KVRAIL_E_BUSY) {
            fprintf(stderr, "%s\n", kvrail_status_name(code));
            exit(1);
        }
    }
    return NULL;
}

static void two_threads(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, wait_a_second, NULL);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
}

int main(int argc, char **argv) {
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = 1 << 20};
    if (argc != 3) {
        return 2;
    }
    EXPECT(KVRAIL_OK, kvrail_attach(argv[1], NULL, &client));
    EXPECT(KVRAIL_OK, kvrail_volume_find(client, argv[2], &volume));
    EXPECT(KVRAIL_OK, kvrail_queue_open(client, NULL, &queue));
    EXPECT(KVRAIL_OK, kvrail_arena_create(client, &wanted, &arena));
    nulls(argv[1]);
    refused(KVRAIL_E_VERSION, "Version");
    refused(KVRAIL_E_NOT_ADMITTED, "NotAllowed");
    requests();
    newer();
    two_threads();
    child();
    memory();
    EXPECT(KVRAIL_OK, kvrail_queue_close(&queue, KVRAIL_FOREVER));
    EXPECT(KVRAIL_OK, kvrail_close(&client));
    puts("every misuse was refused");
    return 0;
}
