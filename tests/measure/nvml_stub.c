/* NVML with two cards, for tests on machines that have none.

   Card 0 draws 100 W and card 1 250 W, by counters of energy that move with the clock. Every FAILS_EVERY-th
   call for a figure fails; once LOST_AFTER calls were made for it, card 1 has fallen off its bus. Both are
   read from the environment, and 0 means never. */

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, GPU_IS_LOST = 15, UNKNOWN = 999 };

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned watts; const char *uuid; int calls; } Card;

static Card cards[2] = {{100, "GPU-11111111-aaaa", 0}, {250, "GPU-22222222-bbbb", 0}};

static int setting(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static int asked(Card *card) {
    int every = setting("FAILS_EVERY"), last = setting("LOST_AFTER");
    card->calls++;
    if (last && card == &cards[1] && card->calls > last) return GPU_IS_LOST;
    return every && card->calls % every == 0 ? UNKNOWN : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card) {
    if (index > 1) return INVALID_ARGUMENT;
    return *card = &cards[index], SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Card **card) {
    for (int index = 0; index < 2; index++)
        if (!strcmp(uuid, cards[index].uuid)) return *card = &cards[index], SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Card *card, char *uuid, unsigned length) { return strcpy(uuid, card->uuid), SUCCESS; }
int nvmlDeviceGetName(Card *card, char *name, unsigned length) { return strcpy(name, "Stub"), SUCCESS; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { return strcpy(version, "1.0"), SUCCESS; }

int nvmlDeviceGetUtilizationRates(Card *card, Utilization *rates) {
    rates->gpu = card->watts / 5;
    return asked(card);
}

int nvmlDeviceGetMemoryInfo(Card *card, Memory *memory) {
    memory->used = card->watts * 1000000ull;
    return asked(card);
}

int nvmlDeviceGetTotalEnergyConsumption(Card *card, unsigned long long *millijoules) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = card->watts * (now.tv_sec * 1000ull + now.tv_nsec / 1000000);
    return asked(card);
}

const char *nvmlErrorString(int code) {
    return code == GPU_IS_LOST ? "GPU is lost" : code == UNKNOWN ? "Unknown Error" : "Error";
}
