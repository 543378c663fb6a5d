/*
 * A clock of its own for a program that is started with this in LD_PRELOAD: the
 * true time and as many nanoseconds as stand in the file that TESTENGINE_CLOCK
 * names, 8 bytes in the order of the machine. The file is mapped, so that what
 * is written there counts at once, under a program that runs.
 *
 * What measures time, CLOCK_MONOTONIC, is left alone. Who waits already is not
 * woken by a jump.
 *
 * No function of the C library is wrapped (the true ones are reached by system
 * calls or by another function), so this works in a program with another,
 * newer C library than it was compiled for.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static const volatile int64_t *offset;

static int64_t ahead(void)
{
	return offset ? __atomic_load_n(offset, __ATOMIC_RELAXED) : 0;
}

static void shift(struct timespec *ts, int64_t by)
{
	int64_t ns = ts->tv_nsec + by % SECOND;
	ts->tv_sec += by / SECOND;
	if (ns < 0) {
		ns += SECOND;
		ts->tv_sec--;
	} else if (ns >= SECOND) {
		ns -= SECOND;
		ts->tv_sec++;
	}
	ts->tv_nsec = ns;
}

__attribute__((constructor)) static void map_offset(void)
{
	const char *name = getenv("TESTENGINE_CLOCK");
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	void *p = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		offset = p;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int result = syscall(SYS_clock_gettime, id, ts);
	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		shift(ts, ahead());
	return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec ts;
	(void)zone; /* obsolete */
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (out)
		*out = ts.tv_sec;
	return ts.tv_sec;
}

/*
 * A condition variable says which clock it goes by only when it is made. But no
 * machine has been up for 30 years: what is later is the time of day.
 */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict until)
{
	struct timespec real = *until;
	if (until->tv_sec < 30 * 365 * 86400)
		return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, until);
	shift(&real, -ahead());
	return pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &real);
}
