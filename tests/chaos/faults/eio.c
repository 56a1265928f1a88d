/* Writing fails with EIO in files whose path contains the text in the file $EIO_AT, while that is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef ssize_t (*write_t)(int, const void *, size_t);
typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);
typedef ssize_t (*writev_t)(int, const struct iovec *, int);
typedef int (*sync_t)(int);

static int broken(int fd) {
    const char *order = getenv("EIO_AT");
    if (order == NULL || access(order, R_OK) != 0) return 0;
    int former = errno, at = open(order, O_RDONLY | O_CLOEXEC);
    char text[512], link[64], path[4096];
    ssize_t length = at < 0 ? 0 : read(at, text, sizeof text - 1);
    if (at >= 0) close(at);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t named = readlink(link, path, sizeof path - 1);
    errno = former;
    if (length <= 0 || named <= 0) return 0;
    text[length] = path[named] = 0;
    if (strstr(path, text) == NULL) return 0;
    errno = EIO;
    return 1;
}

#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

ssize_t write(int fd, const void *from, size_t size) {
    return broken(fd) ? -1 : REAL(write_t, "write")(fd, from, size);
}
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    return broken(fd) ? -1 : REAL(pwrite_t, "pwrite")(fd, from, size, at);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off_t at) {
    return broken(fd) ? -1 : REAL(pwrite_t, "pwrite64")(fd, from, size, at);
}
ssize_t writev(int fd, const struct iovec *from, int count) {
    return broken(fd) ? -1 : REAL(writev_t, "writev")(fd, from, count);
}
int fsync(int fd) { return broken(fd) ? -1 : REAL(sync_t, "fsync")(fd); }
