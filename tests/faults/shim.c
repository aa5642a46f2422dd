/* Stands between SQLite and the disk (LD_PRELOAD): fails, shortens or records what is written to one database, and sets
   the clock back. A process arms it for itself; until then it does nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { FULL = 1, ERRORS = 2, SHORT = 4, READ_ONLY = 8, RECORD = 16 };
static char target[4096];
static volatile int kinds, permille, log_fd = -1;
static volatile long clock_offset;
static uint64_t seed = 1;
volatile long faults_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

void faults_arm(const char *path, int kind, int of_thousand, unsigned long begin) {
    strncpy(target, path, sizeof target - 1);
    seed = begin | 1;
    permille = of_thousand;
    kinds = (kinds & RECORD) | kind;
}
void faults_disarm(void) { kinds &= RECORD; }
void faults_clock(long seconds) { clock_offset = seconds; }
void faults_record(const char *path, const char *into) {
    strncpy(target, path, sizeof target - 1);
    log_fd = REAL(open64)(into, O_CREAT | O_WRONLY | O_APPEND, 0600);
    kinds |= RECORD;
}

/* One entry: what was done, to which file, where, how much, and the bytes; whole or not at all, in the order of doing. */
static void note(char what, char file, int64_t at, int64_t size, const void *data) {
    struct __attribute__((packed)) { char what, file; int64_t at, size; } head = {what, file, at, size};
    REAL(write)(log_fd, &head, sizeof head);
    if (data) REAL(write)(log_fd, data, size);
}
void faults_mark(long number) {
    if (!(kinds & RECORD)) return;
    pthread_mutex_lock(&lock);
    note('m', ' ', number, 0, NULL);
    pthread_mutex_unlock(&lock);
}

/* 'd' the database, 'w' its log, 's' what processes share of the log, 'j' a journal; 0 for any other file. */
static char which(const char *path) {
    size_t length = strlen(target);
    if (!kinds || !length || strncmp(path, target, length)) return 0;
    const char *end = path + length;
    return !*end ? 'd' : !strcmp(end, "-wal") ? 'w' : !strcmp(end, "-shm") ? 's' : !strcmp(end, "-journal") ? 'j' : 0;
}
static char file_of(int fd) {
    char link[64], path[4096];
    if (!kinds) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return which(path);
}
static int chance(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    if ((int)(seed % 1000) >= permille) return 0;
    faults_count++;
    return 1;
}
static int fails(int mask, int with) { return (kinds & mask) && chance() ? (errno = with, 1) : 0; }

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    char file = file_of(fd);
    if (file) {
        if (fails(READ_ONLY, EROFS) || fails(FULL, ENOSPC) || fails(ERRORS, EIO)) return -1;
        if ((kinds & SHORT) && size > 1 && chance()) size /= 2;
    }
    if (!file || file == 's' || !(kinds & RECORD)) return REAL(pwrite64)(fd, data, size, at);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(pwrite64)(fd, data, size, at);
    if (done > 0) note('w', file, at, done, data);
    pthread_mutex_unlock(&lock);
    return done;
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    if (file_of(fd) && fails(ERRORS, EIO)) return -1;
    return REAL(pread64)(fd, data, size, at);
}
int ftruncate64(int fd, off64_t size) {
    char file = file_of(fd);
    if (file && (fails(READ_ONLY, EROFS) || fails(ERRORS, EIO))) return -1;
    if (!file || file == 's' || !(kinds & RECORD)) return REAL(ftruncate64)(fd, size);
    pthread_mutex_lock(&lock);
    int done = REAL(ftruncate64)(fd, size);
    if (!done) note('t', file, size, 0, NULL);
    pthread_mutex_unlock(&lock);
    return done;
}
static int sync_of(int fd, int (*real)(int)) {
    char file = file_of(fd);
    int records = file && file != 's' && (kinds & RECORD);
    if (file && fails(ERRORS, EIO)) return -1;
    for (int end = 0;; end = 1) { /* what is written between begin and end may be missing */
        if (records) {
            pthread_mutex_lock(&lock);
            note(end ? 's' : 'b', file, 0, 0, NULL);
            pthread_mutex_unlock(&lock);
        }
        if (end) return 0;
        int done = real(fd);
        if (done) return done;
    }
}
int fdatasync(int fd) { return sync_of(fd, REAL(fdatasync)); }
int fsync(int fd) { return sync_of(fd, REAL(fsync)); }
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if ((flags & (O_WRONLY | O_RDWR)) && which(path) && (fails(READ_ONLY, EROFS) || fails(FULL, ENOSPC))) return -1;
    return REAL(open64)(path, flags, mode);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int done = REAL(clock_gettime)(id, now);
    if (!done && id == CLOCK_REALTIME) now->tv_sec += clock_offset;
    return done;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int done = REAL(gettimeofday)(now, zone);
    if (!done) now->tv_sec += clock_offset;
    return done;
}
time_t time(time_t *into) {
    time_t now = REAL(time)(NULL) + clock_offset;
    if (into) *into = now;
    return now;
}
