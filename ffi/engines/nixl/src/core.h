/* Which NIXL loaded this plug-in. */
#ifndef KVRAIL_NIXL_CORE_H
#define KVRAIL_NIXL_CORE_H

/* Whether the plug-in is built for the NIXL of this process; prints the reason if not. */
bool is_known_core();

#endif
