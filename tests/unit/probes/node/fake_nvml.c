/* A libnvidia-ml.so of two GPUs; macros choose the faults. Layouts as in nvml.h. */
#include <string.h>
#include <unistd.h>

#ifndef ENTRY_SIZE
#define ENTRY_SIZE 24
#endif
#ifndef LISTED
#define LISTED nvmlDeviceGetComputeRunningProcesses_v2
#endif
#ifndef PID
#define PID 4242
#endif
#define GIB (1ull << 30)

static int devices[2] = {0, 1};
static int is_ready = 0;

int nvmlInit_v2(void) {
#ifdef HANGS
    for (;;) sleep(1000);
#endif
#ifdef NO_DRIVER
    return 9;
#endif
    is_ready = 1;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = 2;
#ifdef MANY
    *count = 4000000000u;
#endif
    return is_ready ? 0 : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index > 1) return 2;
#ifdef LOST_HANDLE
    if (index == 1) return LOST_HANDLE;
#endif
    *device = &devices[index];
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    const char *own = *(int *)device ? "Fake B200" : "Fake A100";
    if (length < strlen(own) + 1) return 7;
    strcpy(name, own);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
#ifdef LOST
    if (*(int *)device) return LOST;
#endif
#ifdef HANGS_ON_DEVICE
    for (;;) sleep(1000);
#endif
#ifdef NONSENSE
    memset(memory, 0xFF, 24);
    return 0;
#endif
    memory[0] = 80 * GIB;
    memory[1] = 20 * GIB;
    memory[2] = 60 * GIB;
    return 0;
}

#ifndef NO_UTILISATION
int nvmlDeviceGetUtilizationRates(void *device, unsigned int *rates) {
#ifdef NONSENSE
    rates[0] = 4000000000u;
    return 0;
#endif
    rates[0] = *(int *)device ? 7 : 93;
    rates[1] = 50;
    return 0;
}
#endif

#ifdef ALL_FIGURES
/* The layouts of nvmlPciInfo_t, version 3, and the numbers of the enumerations. */
int nvmlDeviceGetPciInfo_v3(void *device, char *info) {
    unsigned int numbers[5] = {0, *(int *)device ? 0xb1 : 0x3b, 0, 0x20b210de, 0x153310de};
    memset(info, 0, 68);
    strcpy(info, "0000:xx:xx.0");
    memcpy(info + 16, numbers, sizeof numbers);
    strcpy(info + 36, "00000000:xx:xx.0");
    return 0;
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned int *mhz) {
    *mhz = clock == 1 ? 1410 : 1;
    return *(int *)device ? 3 : 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *degrees) {
    *degrees = sensor == 0 ? 63 : 1;
    return *(int *)device ? 999 : 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    *milliwatts = *(int *)device ? 0xFFFFFFFFu : 301500;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int error, int counter, unsigned long long *count) {
    *count = error == 1 && counter == 0 ? 2 : 99;
    return *(int *)device ? 3 : 0;
}
#endif

static void enter(char *entry, unsigned int pid, unsigned long long used) {
    unsigned int instances[2] = {0xFFFFFFFF, 0xFFFFFFFF};
    unsigned long long is_protected = 0;
    memcpy(entry, &pid, 4);
    memcpy(entry + 8, &used, 8);
    if (ENTRY_SIZE >= 24) memcpy(entry + 16, instances, 8);
    if (ENTRY_SIZE >= 32) memcpy(entry + 24, &is_protected, 8);
}

int LISTED(void *device, unsigned int *count, char *entries) {
#ifdef NO_PROCESSES
    return 3;
#endif
#ifdef TOO_MANY
    *count = 4000000000u;
    return 0;
#endif
#ifdef LOST
    if (*(int *)device) return LOST;
#endif
    if (*(int *)device) {
        *count = 0;
        return 0;
    }
    if (*count < 3) return 7;
    enter(entries, PID, 40 * GIB);
    enter(entries + ENTRY_SIZE, 1, 0xFFFFFFFFFFFFFFFFull);
    enter(entries + 2 * ENTRY_SIZE, 99, 2 * GIB);
    *count = 3;
    return 0;
}
