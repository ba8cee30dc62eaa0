// Preloaded into a test: random numbers, by SplitMix64, that follow from the name of the thread that asks for them.

#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>

static __thread uint64_t state;
static __thread int has_begun;

ssize_t getrandom(void *to, size_t count, unsigned flags) {
    (void)flags;
    if (!has_begun) {
        char name[16] = "";
        prctl(PR_GET_NAME, name);
        state = strtoull(name, 0, 10);
        has_begun = 1;
    }
    unsigned char *bytes = to;
    for (size_t at = 0; at < count; at++) {
        uint64_t mixed = state += 0x9e3779b97f4a7c15;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
        bytes[at] = mixed >> 32;
    }
    return count;
}
