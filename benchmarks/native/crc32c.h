/* CRC-32C (Castagnoli), which record batches carry: by the SSE4.2 instruction where the processor has it, otherwise by
 * a table. */
#ifndef FLAKELOG_CRC32C_H
#define FLAKELOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_by_instruction(const unsigned char *bytes, size_t size) {
    uint64_t crc = 0xffffffffu, word;
    for (; size >= 8; bytes += 8, size -= 8) {
        memcpy(&word, bytes, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size; bytes++, size--) crc = __builtin_ia32_crc32qi((uint32_t)crc, *bytes);
    return ~(uint32_t)crc;
}
#endif

static uint32_t crc32c_by_table(const unsigned char *bytes, size_t size) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
            table[i] = crc;
        }
    uint32_t crc = 0xffffffffu;
    while (size--) crc = crc >> 8 ^ table[(crc ^ *bytes++) & 255];
    return ~crc;
}

static inline uint32_t crc32c(const unsigned char *bytes, size_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc32c_by_instruction(bytes, size);
#endif
    return crc32c_by_table(bytes, size);
}

#endif
