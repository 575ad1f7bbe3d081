// A bad disk, for LD_PRELOAD. It flips a bit of what is written to files whose path holds one of the words of
// BAD_DISK_FLIP, which are separated by commas, does not answer where it holds one of BAD_DISK_HANG, and takes
// 30 milliseconds for a write where it holds one of BAD_DISK_SLOW. What is read with pread from files whose path
// holds one of BAD_DISK_COUNT is told at the end: "bytes read: N". Calls of fdatasync, and of rename, for paths that
// hold one of BAD_DISK_TELL are told when they have returned: "synced PATH", "renamed to PATH".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef ssize_t (*Write)(int, const void*, size_t, off64_t);
typedef ssize_t (*Read)(int, void*, size_t, off64_t);

static int has_word(const char* variable, const char* path) {
  const char* words = getenv(variable);
  if (words == NULL) return 0;
  char list[1024], *rest = list;
  snprintf(list, sizeof list, "%s", words);
  for (char* word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
    if (strstr(path, word) != NULL) return 1;
  }
  return 0;
}

// The path of an open file; empty where it has none.
static void path_of(int fd, char path[PATH_MAX]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, PATH_MAX - 1);
  path[n > 0 ? n : 0] = 0;
}

static int is_chosen(const char* variable, int fd) {
  if (getenv(variable) == NULL) return 0;
  char path[PATH_MAX];
  path_of(fd, path);
  return has_word(variable, path);
}

static ssize_t flip(const char* name, int fd, const void* bytes, size_t size, off64_t offset) {
  const Write next = (Write)dlsym(RTLD_NEXT, name);
  while (is_chosen("BAD_DISK_HANG", fd)) sleep(1);
  if (is_chosen("BAD_DISK_SLOW", fd)) usleep(30000);
  if (size < 1024 || !is_chosen("BAD_DISK_FLIP", fd)) return next(fd, bytes, size, offset);
  char* copy = malloc(size);
  memcpy(copy, bytes, size);
  copy[size / 2] ^= 16;
  const ssize_t done = next(fd, copy, size, offset);
  free(copy);
  return done;
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  return flip("pwrite", fd, bytes, size, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  return flip("pwrite64", fd, bytes, size, offset);
}

static long long bytes_read;

static ssize_t count(const char* name, int fd, void* bytes, size_t size, off64_t offset) {
  const Read next = (Read)dlsym(RTLD_NEXT, name);
  const ssize_t done = next(fd, bytes, size, offset);
  if (done > 0 && is_chosen("BAD_DISK_COUNT", fd)) __atomic_add_fetch(&bytes_read, done, __ATOMIC_RELAXED);
  return done;
}

ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  return count("pread", fd, bytes, size, offset);
}
ssize_t pread64(int fd, void* bytes, size_t size, off64_t offset) {
  return count("pread64", fd, bytes, size, offset);
}

int fdatasync(int fd) {
  const int code = ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
  if (is_chosen("BAD_DISK_TELL", fd)) {
    char path[PATH_MAX];
    path_of(fd, path);
    fprintf(stderr, "synced %s\n", path);
  }
  return code;
}

int rename(const char* from, const char* to) {
  const int code = ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
  if (has_word("BAD_DISK_TELL", to)) fprintf(stderr, "renamed to %s\n", to);
  return code;
}

__attribute__((destructor)) static void tell(void) {
  if (getenv("BAD_DISK_COUNT") != NULL && bytes_read > 0) fprintf(stderr, "bytes read: %lld\n", bytes_read);
}
