/* Stands before the calls of processes that change a file, speak or start something: counts them, and at the n-th
   kills, stops or refuses.  Loaded by LD_PRELOAD; `calls.py` beside it says what the words mean.

   CALLS_AT       rules: ROLE:KIND:N:DO[:PATTERN[:TEXT]], separated by ";"
   CALLS_COUNTS   a file that all processes share, with 8 bytes for each rule: how many such calls there were
   CALLS_ROLE     the role of a process that shows none by its command line
   CALLS_LOG      a file that gets a line for each call: role, kind, path */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITE = 1, SEND = 2, SYNC = 4, RENAME = 8, LINK = 16, UNLINK = 32, MKDIR = 64, RMDIR = 128, CREATE = 256,
       SPAWN = 512, LOCK = 1024, TRUNCATE = 2048, CHMOD = 4096, WAIT = 8192,
       CHANGE = WRITE | RENAME | LINK | UNLINK | MKDIR | RMDIR | CREATE | TRUNCATE | CHMOD };
enum { NONE, KILL, AFTER, HALF, TORN, SHORT, STOP, ALL };
enum { MOST = 16, WORD = 256 };

static const struct word { const char *name; int number; } KINDS[] = {
    {"write", WRITE}, {"send", SEND}, {"sync", SYNC}, {"rename", RENAME}, {"link", LINK}, {"unlink", UNLINK},
    {"mkdir", MKDIR}, {"rmdir", RMDIR}, {"create", CREATE}, {"spawn", SPAWN}, {"lock", LOCK},
    {"truncate", TRUNCATE}, {"chmod", CHMOD}, {"wait", WAIT}, {"change", CHANGE}, {"any", ~0},
    {"step", WRITE | SEND | SYNC | RENAME | LINK | UNLINK | SPAWN | WAIT}, {0, 0}};
static const struct word ACTS[] = {
    {"kill", KILL}, {"after", AFTER}, {"half", HALF}, {"torn", TORN}, {"short", SHORT}, {"stop", STOP}, {"all", ALL}, {0, 0}};
static const struct word ERRORS[] = {
    {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EDQUOT", EDQUOT}, {"EINTR", EINTR}, {"EMFILE", EMFILE}, {"EROFS", EROFS}, {"ENOBUFS", ENOBUFS},
    {"ENOENT", ENOENT}, {"EAGAIN", EAGAIN}, {"EPIPE", EPIPE}, {0, 0}};

static struct rule {
    char role[WORD], pattern[WORD], text[WORD];
    int more, kinds, act, error, onwards;
    long at;
} rules[MOST];
static int number, own;
static pid_t me;
static char role[WORD];
static long *counts;

#define REAL(NAME) ({ static __typeof__(&NAME) real_; \
    real_ = real_ ? real_ : (__typeof__(&NAME))dlsym(RTLD_NEXT, #NAME); real_; })

static int find(const struct word *words, const char *name)
{
    while (words->name && strcmp(words->name, name))
        words++;
    return words->number;
}

static int ends(const char *word, const char *tail)
{
    size_t size = strlen(word), less = strlen(tail);
    return size >= less && !strcmp(word + size - less, tail);
}

static void become(const char *name, int is_own)
{
    snprintf(role, sizeof role, "%s", name);
    own = is_own;
}

/* Who this process is: by its command line, then by the variables. */
static void find_role(void)
{
    static const char *launches[] = {"run", "resume", "dispatch"};
    char line[8192], *words[64];
    int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY), size, count = 0;
    const char *given = getenv("CALLS_ROLE"), *job = getenv("SESSIONRUN_JOB");
    size = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    size = size < 0 ? 0 : size;
    line[size] = 0;
    for (char *word = line; word < line + size && count < 64; word += strlen(word) + 1)
        words[count++] = word;
    become("", 0);
    int python = count && strstr(words[0], "python") != NULL;
    for (int i = 0; python && i < count; i++) {
        if (strstr(words[i], "sessionrun.cluster.node"))
            return become("link", 1);
        if (strstr(words[i], "sessionrun.session.main"))
            return become("supervisor", 1);
        if (ends(words[i], "/sessionrun/keeper/__main__.py"))
            return become("root", 1);
        if (ends(words[i], "/session/job.py") && i + 1 < count)
            return become(words[i + 1], 1);
    }
    if (given)
        return become(given, python);
    if (job) { /* SESSION/TASK/ATTEMPT/ROUND/PHASE/...: of what a job starts */
        char copy[WORD], *rest = copy, *part = NULL;
        snprintf(copy, sizeof copy, "%s", job);
        for (int i = 0; i < 5; i++)
            part = strsep(&rest, "/");
        return become(part ? part : "", 0);
    }
    for (int i = 0; python && i < count; i++)
        if (!strcmp(words[i], "sessionrun") || ends(words[i], "/sessionrun")) {
            const char *verb = i + 1 < count ? words[i + 1] : "run";
            int starts = *verb == '-';
            for (size_t j = 0; j < sizeof launches / sizeof *launches; j++)
                starts |= !strcmp(verb, launches[j]);
            return become(starts ? "launcher" : verb, 1);
        }
}

static void take_rules(const char *text)
{
    char copy[MOST * WORD], *rest = copy, *one;
    snprintf(copy, sizeof copy, "%s", text);
    while ((one = strsep(&rest, ";")) && number < MOST) {
        struct rule *rule = &rules[number++];
        char *who = strsep(&one, ":"), *kind = strsep(&one, ":"), *at = strsep(&one, ":"), *act = strsep(&one, ":");
        memset(rule, 0, sizeof *rule);
        if (!act)
            abort();
        rule->more = ends(who, "+");
        snprintf(rule->role, sizeof rule->role, "%.*s", (int)strlen(who) - rule->more, who);
        rule->kinds = find(KINDS, kind);
        rule->at = atol(at);
        rule->onwards = ends(at, "+");
        rule->act = find(ACTS, act);
        rule->error = find(ERRORS, act);
        if (!rule->kinds || !(rule->act || rule->error))
            abort();
        snprintf(rule->pattern, sizeof rule->pattern, "%s", one ? strsep(&one, ":") : "");
        snprintf(rule->text, sizeof rule->text, "%s", one ? one : "");
    }
}

/* Also called by a process that becomes another program without exec: see `tests/execs.py`. */
__attribute__((constructor)) void calls_begin(void)
{
    const char *text = getenv("CALLS_AT"), *file = getenv("CALLS_COUNTS");
    if (counts)
        munmap(counts, (MOST + 1) * sizeof *counts);
    counts = NULL;
    number = 0;
    me = getpid();
    if (!text || !file)
        return;
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    counts = mmap(NULL, (MOST + 1) * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (counts == MAP_FAILED) {
        counts = NULL;
        return;
    }
    take_rules(text);
    find_role();
    for (int i = 0; own && i < number; i++)
        if (!strcmp(rules[i].role, role))
            counts[MOST] = getpid(); /* the one whose group a rule kills: git leads a session of its own */
}

struct meeting { int act, error; };

static void die(int act)
{
    pid_t owner = counts ? counts[MOST] : 0;
    if ((act == ALL || act == TORN) && owner > 0)
        kill(-getpgid(owner), SIGKILL); /* first, so that it does not see the end of its child */
    kill(act == ALL || act == TORN ? 0 : getpid(), SIGKILL);
    for (;;)
        pause();
}

static const char *name_kind(int kind)
{
    const struct word *word = KINDS;
    while (word->name && word->number != kind)
        word++;
    return word->name ? word->name : "?";
}

static void note(int kind, const char *place)
{
    char line[5000];
    int size = snprintf(line, sizeof line, "%s%s %s %s\n", role, own ? "" : "+", name_kind(kind), place);
    int fd = syscall(SYS_openat, AT_FDCWD, getenv("CALLS_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        syscall(SYS_write, fd, line, size);
        close(fd);
    }
}

static struct meeting meet(int kind, const char *path, int fd, const void *content, size_t size)
{
    struct meeting met = {NONE, 0};
    char link[64], place[4096] = "";
    int kept = errno;
    if (!counts || !number || !*role || getpid() != me) /* a child of vfork has our memory */
        return met;
    if (path)
        snprintf(place, sizeof place, "%s", path);
    else if (fd >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, place, sizeof place - 1);
        place[size < 0 ? 0 : size] = 0;
    }
    errno = kept;
    if (strstr(place, ".pyc") || strstr(place, "__pycache__") || !strncmp(place, "/dev/", 5)
        || !strncmp(place, "/proc/", 6))
        return met;
    if (getenv("CALLS_LOG"))
        note(kind, place);
    errno = kept;
    for (int i = 0; i < number; i++) {
        const struct rule *rule = &rules[i];
        if (strcmp(rule->role, role) || !(rule->kinds & kind) || !(own || rule->more))
            continue;
        if ((rule->act == HALF || rule->act == TORN || rule->act == SHORT) && kind != WRITE)
            continue;
        if (*rule->pattern && fnmatch(rule->pattern, place, 0))
            continue;
        if (*rule->text && !(content && memmem(content, size, rule->text, strlen(rule->text))))
            continue;
        long now = __atomic_add_fetch(&counts[i], 1, __ATOMIC_SEQ_CST);
        if (now != rule->at && !(rule->onwards && now >= rule->at))
            continue;
        if (rule->act == KILL || rule->act == ALL)
            die(rule->act);
        if (rule->act == STOP)
            kill(getpid(), SIGSTOP);
        met.act = rule->act;
        met.error = rule->error;
    }
    return met;
}

#define WRAP(KIND, PATH, FD, TYPE, NAME, PARAMETERS, ARGUMENTS)           \
    TYPE NAME PARAMETERS                                                  \
    {                                                                     \
        struct meeting met = meet(KIND, PATH, FD, NULL, 0);               \
        if (met.error) {                                                  \
            errno = met.error;                                            \
            return -1;                                                    \
        }                                                                 \
        TYPE result = REAL(NAME) ARGUMENTS;                               \
        if (met.act == AFTER)                                             \
            die(AFTER);                                                   \
        return result;                                                    \
    }
#define AT_PATH(KIND, NAME, PARAMETERS, ARGUMENTS) WRAP(KIND, path, -1, int, NAME, PARAMETERS, ARGUMENTS)
#define AT_FD(KIND, TYPE, NAME, PARAMETERS, ARGUMENTS) WRAP(KIND, NULL, fd, TYPE, NAME, PARAMETERS, ARGUMENTS)
#define NOWHERE(KIND, TYPE, NAME, PARAMETERS, ARGUMENTS) WRAP(KIND, NULL, -1, TYPE, NAME, PARAMETERS, ARGUMENTS)

AT_PATH(RENAME, rename, (const char *from, const char *path), (from, path))
AT_PATH(RENAME, renameat, (int dir, const char *from, int to, const char *path), (dir, from, to, path))
AT_PATH(LINK, link, (const char *from, const char *path), (from, path))
AT_PATH(LINK, linkat, (int dir, const char *from, int to, const char *path, int flags), (dir, from, to, path, flags))
AT_PATH(LINK, symlink, (const char *from, const char *path), (from, path))
AT_PATH(LINK, symlinkat, (const char *from, int dir, const char *path), (from, dir, path))
AT_PATH(UNLINK, unlink, (const char *path), (path))
AT_PATH(flags & AT_REMOVEDIR ? RMDIR : UNLINK, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
AT_PATH(MKDIR, mkdir, (const char *path, mode_t mode), (path, mode))
AT_PATH(MKDIR, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
AT_PATH(RMDIR, rmdir, (const char *path), (path))
AT_PATH(CHMOD, chmod, (const char *path, mode_t mode), (path, mode))
AT_FD(CHMOD, int, fchmod, (int fd, mode_t mode), (fd, mode))
AT_FD(TRUNCATE, int, ftruncate, (int fd, off_t size), (fd, size))
AT_FD(TRUNCATE, int, ftruncate64, (int fd, off64_t size), (fd, size))
AT_FD(SYNC, int, fsync, (int fd), (fd))
AT_FD(SYNC, int, fdatasync, (int fd), (fd))
AT_FD(LOCK, int, flock, (int fd, int how), (fd, how))
AT_FD(SEND, ssize_t, send, (int fd, const void *content, size_t size, int flags), (fd, content, size, flags))
AT_FD(SEND, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
NOWHERE(WAIT, pid_t, waitpid, (pid_t pid, int *status, int flags), (pid, status, flags))
NOWHERE(WAIT, pid_t, wait4, (pid_t pid, int *status, int flags, struct rusage *usage), (pid, status, flags, usage))
NOWHERE(WAIT, int, waitid, (idtype_t type, id_t id, siginfo_t *info, int flags), (type, id, info, flags))
WRAP(SPAWN, path, -1, int, execve, (const char *path, char *const *argv, char *const *environ), (path, argv, environ))

#define OPEN(NAME, DIR, DIR_ARGUMENT)                                     \
    int NAME(DIR const char *path, int flags, ...)                        \
    {                                                                     \
        mode_t mode = 0;                                                  \
        struct meeting met = {NONE, 0};                                   \
        if (flags & (O_CREAT | __O_TMPFILE)) {                            \
            va_list rest;                                                 \
            va_start(rest, flags);                                        \
            mode = va_arg(rest, mode_t);                                  \
            va_end(rest);                                                 \
        }                                                                 \
        if (flags & (O_CREAT | O_TRUNC))                                  \
            met = meet(CREATE, path, -1, NULL, 0);                                 \
        if (met.error) {                                                  \
            errno = met.error;                                            \
            return -1;                                                    \
        }                                                                 \
        int fd = REAL(NAME)(DIR_ARGUMENT path, flags, mode);              \
        if (met.act == AFTER)                                             \
            die(AFTER);                                                   \
        return fd;                                                        \
    }
#define COMMA ,
#define EMPTY
OPEN(open, EMPTY, EMPTY)
OPEN(open64, EMPTY, EMPTY)
OPEN(openat, int dir COMMA, dir COMMA)
OPEN(openat64, int dir COMMA, dir COMMA)

/* To a file, or to a pipe or a socket; not to the three streams. */
static int find_kind(int fd)
{
    struct stat about;
    int kept = errno, failed = fd <= 2 || fstat(fd, &about);
    errno = kept;
    return failed ? 0 : S_ISREG(about.st_mode) ? WRITE : S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode) ? SEND : 0;
}

ssize_t write(int fd, const void *content, size_t size)
{
    int kind = counts ? find_kind(fd) : 0;
    struct meeting met = {NONE, 0};
    if (kind)
        met = meet(kind, NULL, fd, content, size);
    if (met.error) {
        errno = met.error;
        return -1;
    }
    ssize_t done = REAL(write)(fd, content, met.act == HALF || met.act == TORN || met.act == SHORT ? (size + 1) / 2 : size);
    if (met.act == HALF || met.act == TORN || met.act == AFTER)
        die(met.act);
    return done;
}

AT_FD(find_kind(fd), ssize_t, pwrite64, (int fd, const void *content, size_t size, off64_t at), (fd, content, size, at))
AT_FD(find_kind(fd), ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
AT_FD(WRITE, ssize_t, copy_file_range, (int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned flags), (from, at, fd, to, size, flags))

pid_t fork(void)
{
    struct meeting met = meet(SPAWN, "fork", -1, NULL, 0);
    if (met.error) {
        errno = met.error;
        return -1;
    }
    pid_t pid = REAL(fork)();
    if (pid == 0) {
        me = getpid();
        if (!strcmp(role, "root"))
            become("keeper", own);
        else if (!strcmp(role, "keeper") || !strcmp(role, "supervisor") || !strcmp(role, "link"))
            become("", 0); /* of what will be another program */
        else if (own)
            become("daemon", own);
    } else if (met.act == AFTER)
        die(AFTER);
    return pid;
}

#define POSIX_SPAWN(NAME)                                                                             \
    int NAME(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,                 \
             const posix_spawnattr_t *how, char *const *argv, char *const *environ)                   \
    {                                                                                                 \
        struct meeting met = meet(SPAWN, path, -1, NULL, 0);                                          \
        if (met.error)                                                                                \
            return met.error;                                                                         \
        int failed = REAL(NAME)(pid, path, actions, how, argv, environ);                              \
        if (met.act == AFTER)                                                                         \
            die(AFTER);                                                                               \
        return failed;                                                                                \
    }
POSIX_SPAWN(posix_spawn)
POSIX_SPAWN(posix_spawnp)
