/* Does the ioctl of the first argument with the id of the second on the directory that is its standard input; tells the id
 * or the errno. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
    uint64_t txn[2] = {argc > 2 ? strtoull(argv[2], NULL, 0) : 0, 0};
    int done = ioctl(0, argc > 1 ? strtoul(argv[1], NULL, 0) : 0, txn);
    printf("%llu\n", done < 0 ? (unsigned long long)errno : (unsigned long long)txn[0]);
    return done < 0;
}
